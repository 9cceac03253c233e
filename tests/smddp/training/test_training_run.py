"""The training run of one rank, with the location in S3 and its agent played by a double."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from torch import nn

import smddp.training.active_runs
from smddp import CheckpointPolicy
from smddp.checkpoint import Checkpointer, list_checkpoints
from smddp.checkpoint.run_state import Stateful
from smddp.checkpoint.save import background_saves
from smddp.checkpoint.stores import StoreError
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.store import CommitListener, Store
from smddp.distributed import Membership, current_membership, join, leave
from smddp.errors import CheckpointError
from smddp.goodput import PartClock
from smddp.job import Job
from smddp.process.preemption import Stopped, stop_signal
from smddp.training import stop_deadline
from smddp.training.active_runs import active_runs
from smddp.training.progress import Progress
from smddp.training.save_schedule import Pause
from smddp.training.training_parts import TrainingParts
from smddp.training.training_run import TrainingRun


class Agent(CommitListener):
    """What watches the platform's copy of the checkpoints to S3."""

    settles = True

    def __init__(self, source: DirectoryStore, target: Store, *, take_over: bool) -> None:
        self.source, self.target, self.take_over = source, target, take_over
        self.expected: list[int] = []
        self.is_closed = False
        agents.append(self)

    def __str__(self) -> str:
        return str(self.target)

    def path(self, step: int) -> str:
        return self.target.path(step)

    def expect(self, step: int, manifest: bytes) -> None:
        self.expected.append(step)

    def settle(self, timeout: float) -> bool:
        assert 0 < timeout <= 90
        return self.settles

    def close(self) -> None:
        self.is_closed = True


agents: list[Agent] = []


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(smddp.training.active_runs, "UploadMonitor", Agent)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    agents.clear()
    yield
    leave()
    stop_signal.requested = False


@pytest.fixture
def copied(job: Job) -> Job:
    return dataclasses.replace(job, checkpoint_s3_uri="s3://bucket/run", checkpoints_are_copied=True)


class Parts(TrainingParts):
    """A model without a trainer."""

    def __init__(self) -> None:
        self.models, self.progress, self.state = {}, Progress(), {"model": nn.Linear(2, 2)}
        self._running_means = []

    @property
    def order(self) -> None:
        return None

    def per_rank_state(self) -> dict[str, Stateful]:
        return {}


def guard(job: Job, **policy: object) -> TrainingRun:
    guarded = TrainingRun(job, join(job.cluster), CheckpointPolicy(**policy), Parts(), clock=PartClock())  # type: ignore[arg-type]
    guarded.resume()
    return guarded


def step(guarded: TrainingRun) -> None:
    guarded.progress.steps += 1
    guarded.save_or_stop_if_due(Pause.STEP)


def stop_at_once(guarded: TrainingRun) -> None:
    stop_signal.requested = True
    guarded.save_or_stop_if_due(Pause.COLLECTIVE)


def test_a_stop_waits_until_the_copy_is_in_s3_and_says_where(copied: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    guarded = guard(copied)
    step(guarded)
    with pytest.raises(Stopped):
        stop_at_once(guarded)
    assert agents[0].expected == [1]
    assert "stopped at step 1, in epoch 1: the checkpoint is s3://bucket/run/step-000000000001" in caplog.messages


def test_a_stop_whose_copy_does_not_arrive_in_s3_is_no_resumable_end(
    copied: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agent, "settles", False)
    guarded = guard(copied)
    step(guarded)
    with pytest.raises(CheckpointError, match=r"told to stop at step 1, .* on this machine only, and not in s3://"):
        stop_at_once(guarded)
    assert [found.step for found in list_checkpoints(copied.checkpoint_dir)] == [1]


@pytest.mark.parametrize(("sync", "takes_over"), [("watch", False), ("upload", True)])
def test_the_policy_says_whether_late_copies_are_uploaded(copied: Job, sync: str, takes_over: bool) -> None:
    guard(copied, sync=sync)
    assert agents[0].take_over is takes_over
    assert agents[0].source.root == copied.checkpoint_dir


def test_nobody_is_watched_where_nothing_is_copied(job: Job) -> None:
    guard(job)
    assert agents == []


def test_a_place_that_may_not_be_written_to_is_found_before_training(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: DirectoryStore) -> None:
        raise StoreError(f"{self} is read-only")

    monkeypatch.setattr(DirectoryStore, "check_writable", refuse)
    with pytest.raises(CheckpointError, match="run/checkpoints is read-only"):
        guard(job)


def test_a_stop_that_a_run_meets_before_its_start_saves_the_others(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    critic, parts = job.part("critic"), Parts()
    training = guard(critic)
    step(training)
    membership = current_membership()
    assert membership is not None
    unstarted = TrainingRun(job, membership, CheckpointPolicy(), parts, clock=PartClock())
    with pytest.raises(Stopped):
        stop_at_once(unstarted)
    assert [found.step for found in list_checkpoints(critic.checkpoint_dir)] == [1]
    assert caplog.messages[-1] == (
        f"stopped at step 0, in epoch 1: the checkpoint is {critic.checkpoint_dir / 'step-000000000001'}"
    )
    assert training.open_run.was_stopped


def test_a_stop_before_the_start_of_all_runs_saves_nothing(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    parts = Parts()
    unstarted = TrainingRun(job, join(job.cluster), CheckpointPolicy(), parts, clock=PartClock())
    with pytest.raises(Stopped):
        stop_at_once(unstarted)
    assert caplog.messages[-1] == "stopped at step 0, in epoch 1: nothing was to be saved"
    assert not list(job.checkpoint_dir.glob("*"))


@pytest.fixture
def disk_that_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    write = DirectoryStore.write
    broken = [True]

    def fail_once(self: DirectoryStore, *arguments: object) -> None:
        if broken.pop() if broken else False:
            raise OSError(28, "No space left on device")
        write(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(DirectoryStore, "write", fail_once)


@pytest.mark.usefixtures("disk_that_fails_once")
def test_a_stop_saves_again_what_has_just_failed(job: Job) -> None:
    guarded = guard(job, every=1)
    step(guarded)
    with pytest.raises(Stopped):
        stop_at_once(guarded)
    assert [(found.step, found.valid) for found in list_checkpoints(job.checkpoint_dir)] == [(1, True)]


@pytest.mark.usefixtures("disk_that_fails_once")
@pytest.mark.parametrize("is_heard_before", [False, True])
def test_a_loops_end_saves_again_what_has_just_failed(
    job: Job, is_heard_before: bool, caplog: pytest.LogCaptureFixture
) -> None:
    guarded = guard(job, every=1)
    step(guarded)
    while is_heard_before and guarded.open_run.checkpointer.busy:
        time.sleep(0.001)
    guarded.save_or_stop_if_due(Pause.END)
    guarded.finish()
    assert caplog.messages[-1] == "the checkpoint of step 1 is made again"
    assert [(found.step, found.valid) for found in list_checkpoints(job.checkpoint_dir)] == [(1, True)]


def test_a_full_disk_ends_a_job_of_many_loops(job: Job, broken_disk: Callable[[], None]) -> None:
    guarded = guard(job, every=1)
    broken_disk()
    step(guarded)
    guarded.finish()  # the save and its repetition are two failures
    step(guarded)
    with pytest.raises(CheckpointError, match=r"step-000000000002.*I/O error"):
        guarded.finish()


def test_a_stop_right_after_a_resume_needs_no_save(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = guard(job, every=1)
    step(guarded)
    guarded.finish()
    del guarded
    again = TrainingRun(job, join_again(), CheckpointPolicy(), Parts(), clock=PartClock())
    assert again.resume()
    monkeypatch.setattr(DirectoryStore, "write", None)
    with pytest.raises(Stopped):
        stop_at_once(again)


@pytest.fixture
def broken_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def commit(*_: object, **__: object) -> None:
        raise OSError(5, "I/O error")

    return lambda: monkeypatch.setattr(DirectoryStore, "commit", commit)


def test_a_failure_that_is_not_tolerated_is_raised_at_the_next_boundary(
    job: Job, broken_disk: Callable[[], None]
) -> None:
    guarded = guard(job, every=1, tolerate_failures=0)
    broken_disk()
    step(guarded)
    deadline = time.monotonic() + 30
    with pytest.raises(CheckpointError, match=r"step-000000000001.*I/O error"):
        while time.monotonic() < deadline:
            guarded.save_or_stop_if_due(Pause.COLLECTIVE)
            time.sleep(0.01)


def test_the_last_checkpoint_must_not_fail_where_no_failure_is_tolerated(
    job: Job, broken_disk: Callable[[], None]
) -> None:
    guarded = guard(job, every=1, tolerate_failures=0)
    broken_disk()
    step(guarded)
    with pytest.raises(CheckpointError, match=r"step-000000000001.*I/O error"):
        guarded.finish()


def test_the_last_checkpoint_may_fail_where_failures_are_tolerated_and_that_is_said(
    job: Job, broken_disk: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as saves, active_runs.until_script_ends(saves, ExitStack()):
        guarded = guard(job, every=1)
        step(guarded)
        guarded.finish()
        broken_disk()
        step(guarded)
        guarded.finish()
    *_, reason, consequence = caplog.messages
    assert reason.endswith(
        "I/O error; earlier ones are as they were; this was failure 2 of 2 in a row that are tolerated"
    )
    assert consequence == (
        "training ends without its newest checkpoint: the next attempt resumes from "
        f"{job.checkpoint_dir / 'step-000000000001'}"
    )


def test_who_waits_for_a_checkpoint_hears_that_it_failed(job: Job, broken_disk: Callable[[], None]) -> None:
    guarded = guard(job, every=1)
    step(guarded)
    guarded.await_durable()
    broken_disk()
    step(guarded)
    with pytest.raises(CheckpointError, match="I/O error"):
        guarded.await_durable()


def test_a_stop_that_is_late_still_has_some_seconds(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_deadline, "STOP_SECONDS", 0.0)
    monkeypatch.setattr(stop_deadline, "LEAST_SECONDS", 60.0)
    guarded = guard(job)
    step(guarded)
    with pytest.raises(Stopped):
        stop_at_once(guarded)
    assert [found.step for found in list_checkpoints(job.checkpoint_dir)] == [1]


def test_an_interrupted_wait_at_the_scripts_end_is_not_begun_anew(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Checkpointer) -> bool:
        raise KeyboardInterrupt

    released = threading.Event()
    monkeypatch.setattr(DirectoryStore, "commit", lambda *_, **__: released.wait(60))
    monkeypatch.setattr(Checkpointer, "finish", interrupted)
    monkeypatch.setattr(background_saves, "GRACE_SECONDS", 0.2)
    release = threading.Timer(20, released.set)
    release.start()
    with pytest.raises(KeyboardInterrupt), ExitStack() as saves, active_runs.until_script_ends(saves, ExitStack()):
        step(guard(job, every=1))
    assert not released.is_set()  # the exit did not wait for the save
    release.cancel()
    released.set()


def join_again() -> Membership:
    leave()
    return join()
