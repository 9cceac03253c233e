"""Training goes on while a checkpoint is saved, never two are at once, and what goes wrong is heard of."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from smddp.checkpoint import Checkpointer, list_checkpoints
from smddp.checkpoint.save import background_saves
from smddp.checkpoint.save.attempt import Moment
from smddp.checkpoint.save.background_saves import BackgroundTask
from smddp.checkpoint.save.device_copies import DeviceCopies
from smddp.checkpoint.save.save_group import SaveGroup
from smddp.checkpoint.save.staging import Staging
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.store import CommitListener
from smddp.distributed import Ranks
from smddp.errors import CheckpointError
from tests.interrupts import alarm_at_the_first_call, handler_error

NewRun = Callable[..., Any]


class SlowDisk:
    """Each write waits until it may go on; counts how many saves are under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go_on = threading.Event()
        self.reached = threading.Event()
        self.attempts_under_way: set[str] = set()
        self.most_under_way = 0
        real_write, real_commit = DirectoryStore.write, DirectoryStore.commit

        def write(store: DirectoryStore, step: int, directory: str, *rest: Any) -> None:
            self.attempts_under_way.add(directory)
            self.most_under_way = max(self.most_under_way, len(self.attempts_under_way))
            self.reached.set()
            assert self.may_go_on.wait(60)
            real_write(store, step, directory, *rest)

        def commit(store: DirectoryStore, step: int, directory: str, *rest: Any, **options: Any) -> None:
            real_commit(store, step, directory, *rest, **options)
            self.attempts_under_way.remove(directory)

        monkeypatch.setattr(DirectoryStore, "write", write)
        monkeypatch.setattr(DirectoryStore, "commit", commit)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.may_go_on.set()


def test_save_returns_while_the_disk_still_works(new_run: NewRun, slow_disk: SlowDisk) -> None:
    run = new_run()
    run.begin_save(1)
    assert slow_disk.reached.wait(60)
    assert run.checkpointer.busy
    assert run.checkpointer.wait(0.01) is None
    assert run.checkpointer.last_report is None
    run.checkpointer.check()
    slow_disk.may_go_on.set()
    report = run.checkpointer.wait()
    assert report.step == 1
    assert report.stall_seconds < report.durable_seconds
    assert report is run.checkpointer.last_report
    assert not run.checkpointer.busy


def test_training_goes_on_with_other_values_than_are_saved(tmp_path: Path, slow_disk: SlowDisk) -> None:
    model = torch.nn.BatchNorm1d(1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    def train() -> None:
        optimizer.zero_grad()
        model(torch.rand(8, 1000)).square().sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5

    train()
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    momentum = optimizer.state[model.weight]["momentum_buffer"].clone()
    checkpointer = Checkpointer(tmp_path, {"model": model, "optimizer": optimizer})
    checkpointer.save(1)
    train()
    drawn = torch.rand(3)
    slow_disk.may_go_on.set()
    checkpointer.close()

    Checkpointer(tmp_path, {"model": model, "optimizer": optimizer}).load()
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name])
    assert torch.equal(optimizer.state[model.weight]["momentum_buffer"], momentum)
    assert optimizer.param_groups[0]["lr"] == 0.25
    torch.rand(8, 1000)
    assert torch.equal(torch.rand(3), drawn)


def test_a_save_waits_for_the_one_before_and_says_that_it_did(
    new_run: NewRun, slow_disk: SlowDisk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = BackgroundTask.wait

    def wait_for_the_disk(task: BackgroundTask[Any], timeout: float | None = None) -> bool:
        threading.Timer(0.3, slow_disk.may_go_on.set).start()  # no earlier than somebody waits
        return wait(task, timeout)

    monkeypatch.setattr(background_saves, "_FELT_SECONDS", 0.0)
    run = new_run()
    run.begin_save(1)
    assert slow_disk.reached.wait(60)
    monkeypatch.setattr(BackgroundTask, "wait", wait_for_the_disk)
    run.begin_save(2)
    report = run.checkpointer.wait()
    assert slow_disk.most_under_way == 1
    assert report.step == 2
    assert report.waited_seconds > 0.2
    assert "s for saves, now for the checkpoint of step 1: they come faster than one is written" in caplog.text
    run.save(3)
    assert run.checkpointer.last_report.waited_seconds < 0.2
    assert [info.step for info in list_checkpoints(run.directory) if info.valid] == [1, 2, 3]
    run.begin_save(4)
    run.save(5)
    assert caplog.text.count("training has waited") == 1


def fail(*_: object, **__: object) -> None:
    raise OSError(5, "Input/output error")


def until_idle(checkpointer: Checkpointer) -> None:
    while checkpointer.busy:
        time.sleep(0.001)


@pytest.mark.parametrize("where", ["check", "wait", "close", "next save", "load"])
def test_a_failure_is_raised_at_the_next_occasion_and_only_once(
    where: str, new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    run.save(1)
    monkeypatch.setattr(DirectoryStore, "write", fail)
    run.begin_save(2)
    until_idle(run.checkpointer)
    monkeypatch.undo()
    occasions: dict[str, Callable[[], object]] = {
        "check": run.checkpointer.check,
        "wait": run.checkpointer.wait,
        "close": run.checkpointer.close,
        "next save": lambda: run.begin_save(3),
        "load": run.load,
    }
    with pytest.raises(CheckpointError, match=r"could not save .*step-000000000002: OSError: .*Input/output") as raised:
        occasions[where]()
    assert isinstance(raised.value.__cause__, OSError)
    if where == "close":
        run = new_run()
    run.checkpointer.check()
    assert run.load() == (3 if where == "next save" else 1)
    run.save(4)
    assert run.load() == 4


def test_the_first_few_failures_of_the_environment_are_tolerated_and_logged(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(tolerate_failures=2)

    def save(step: int) -> None:
        run.begin_save(step)
        until_idle(run.checkpointer)
        run.checkpointer.check()

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(DirectoryStore, "write", fail)
            save(1)
            save(2)
        save(3)  # counting begins anew
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [f"failure {number} of 2 in a row" in record.getMessage() for record in errors for number in (1, 2)] == [
        *(True, False, False, True),
        *(True, False, False, True),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "write", fail)
        save(4)
        save(5)
        with pytest.raises(CheckpointError, match="Input/output error"):
            save(6)


@pytest.mark.parametrize("ways", [["finish"] * 3, ["wait", "check", "finish"], ["check", "finish", "next save"]])
def test_a_failure_counts_whoever_hears_of_it(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, ways: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = new_run(tolerate_failures=2).checkpointer
    monkeypatch.setattr(DirectoryStore, "write", fail)
    hear = {
        "finish": checkpointer.finish,
        "check": checkpointer.check,
        "wait": checkpointer.wait,
        "next save": lambda: checkpointer.save(9),
    }
    for step, way in enumerate(ways, start=1):
        checkpointer.save(step)
        until_idle(checkpointer)
        third = pytest.raises(CheckpointError, match=r"step-000000000003.*Input/output error")
        with pytest.raises(CheckpointError) if way == "wait" else third if step == 3 else nullcontext():
            hear[way]()
    assert "this was failure 2 of 2 in a row that are tolerated" in caplog.text


def test_what_is_no_failure_of_the_environment_is_never_tolerated(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a defect")

    run = new_run(tolerate_failures=5)
    monkeypatch.setattr(DirectoryStore, "write", defect)
    run.begin_save(1)
    until_idle(run.checkpointer)
    with pytest.raises(CheckpointError, match="ZeroDivisionError: a defect"):
        run.checkpointer.check()


def test_waiting_for_a_checkpoint_that_failed_raises_even_if_failures_are_tolerated(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tolerate_failures=5)
    run.save(1)
    monkeypatch.setattr(DirectoryStore, "write", fail)
    run.begin_save(2)
    with pytest.raises(CheckpointError, match="Input/output error"):
        run.checkpointer.wait()
    assert run.checkpointer.wait() is None  # the last one is not durable
    assert run.checkpointer.last_report.step == 1


def test_leaving_the_with_block_makes_the_last_save_durable(tmp_path: Path, slow_disk: SlowDisk) -> None:
    threading.Timer(0.2, slow_disk.may_go_on.set).start()
    with Checkpointer(tmp_path, {}) as checkpointer:
        checkpointer.save(1)
    assert [info.valid for info in list_checkpoints(tmp_path)] == [True]


def test_leaving_it_by_an_exception_keeps_the_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_disk: SlowDisk, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("smddp.checkpoint.save.background_saves.GRACE_SECONDS", 0.1)
    with pytest.raises(KeyError, match="mine"), Checkpointer(tmp_path, {}) as checkpointer:
        checkpointer.save(1)
        raise KeyError("mine")
    assert "the checkpoint of step 1 was given up" in caplog.text


def test_warming_up_leaves_nothing_to_take_for_the_first_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(300, 300)
    checkpointer = Checkpointer(tmp_path, {"model": model})
    with caplog.at_level(logging.DEBUG, logger="smddp.checkpoint.save.staging"):
        checkpointer.warm_up()
        until_idle(checkpointer)
        assert "taking 0.4 MB" in caplog.text
        caplog.clear()
        checkpointer.save(1)
        assert "taking 0.4 MB" not in caplog.text
    checkpointer.close()
    assert [info.valid for info in list_checkpoints(tmp_path)] == [True]


def test_a_warming_up_that_finds_no_memory_is_told_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise MemoryError("2 GB")

    checkpointer = Checkpointer(tmp_path, {"model": torch.nn.Linear(3, 3)})
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "prepare", full)
        checkpointer.warm_up()
        until_idle(checkpointer)
        checkpointer.check()
    assert caplog.messages == ["could not take the memory to save from: MemoryError: 2 GB; the first save tries again"]
    checkpointer.save(1)
    checkpointer.close()
    assert [info.valid for info in list_checkpoints(tmp_path)] == [True]


def test_waiting_for_the_warming_up_is_no_back_pressure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()
    monkeypatch.setattr(background_saves, "_FELT_SECONDS", 0.0)
    monkeypatch.setattr(DirectoryStore, "check_writable", lambda _: go.wait(60))
    checkpointer = Checkpointer(tmp_path, {})
    checkpointer.warm_up()
    threading.Timer(0.2, go.set).start()
    checkpointer.save(1)
    checkpointer.close()
    assert checkpointer.last_report is not None
    assert "training has waited" not in caplog.text


def test_each_checkpoint_is_announced_once_it_is_durable(tmp_path: Path) -> None:
    class Watch(CommitListener):
        def __init__(self) -> None:
            self.expected: list[tuple[int, bytes]] = []

        def expect(self, step: int, manifest: bytes) -> None:
            assert (tmp_path / f"step-{step:012}" / "manifest.json").read_bytes() == manifest
            self.expected.append((step, manifest))

    watch = Watch()
    with Checkpointer(tmp_path, {}, listener=watch) as checkpointer:
        checkpointer.save(1)
        checkpointer.save(2)
    assert [step for step, _ in watch.expected] == [1, 2]


def test_another_kind_of_listener_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"listener is an object: make it a smddp.checkpoint.CommitListener"):
        Checkpointer(tmp_path, {}, listener=object())  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", [False, True])
def test_a_closed_run_waits_for_the_second_place_only_if_its_last_save_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    class Watch(CommitListener):
        def __init__(self) -> None:
            self.calls: list[str] = []

        def settle(self, timeout: float) -> bool:
            self.calls.append("settle")
            return True

        def close(self) -> None:
            self.calls.append("close")

    def commit(*_: object, **__: object) -> None:
        raise OSError(5, "I/O error")

    watch = Watch()
    checkpointer = Checkpointer(tmp_path, {}, listener=watch)
    if fails:
        monkeypatch.setattr(DirectoryStore, "commit", commit)
    checkpointer.save(1)
    with pytest.raises(CheckpointError, match="I/O error") if fails else nullcontext():
        checkpointer.close()
    assert watch.calls == (["close"] if fails else ["settle", "close"])


def test_what_a_save_costs_counts_the_time_for_which_the_gpu_copied(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceCopies, "wait", lambda _: 1000.0)
    run = new_run()
    run.save(1)
    assert 1000 <= run.checkpointer.last_report.stall_seconds < 2000  # counted once


def test_a_moment_that_is_being_saved_is_waited_for_and_not_saved_again(new_run: NewRun, slow_disk: SlowDisk) -> None:
    run = new_run()
    run.begin_save(1)
    assert slow_disk.reached.wait(60)
    threading.Timer(0.1, slow_disk.may_go_on.set).start()
    run.checkpointer.make_durable(Moment(step=1), seconds=60)
    assert run.checkpointer.last_report.step == 1
    assert run.checkpointer.newest == (1, 0)
    report = run.checkpointer.last_report
    run.checkpointer.make_durable(Moment(step=1), seconds=60)
    assert run.checkpointer.last_report is report
    run.checkpointer.make_durable(Moment(step=1, epoch=1), seconds=60)
    assert run.checkpointer.last_report is not report
    assert run.checkpointer.newest == (1, 1)


def test_a_stop_that_kills_the_loaders_workers_too_waits_for_the_save_all_the_same(
    new_run: NewRun, slow_disk: SlowDisk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    run.begin_save(1)
    assert slow_disk.reached.wait(60)
    alarm_at_the_first_call(monkeypatch, BackgroundTask, "wait")
    with handler_error(60, then=slow_disk.may_go_on.set):
        run.checkpointer.make_durable(Moment(step=1), seconds=60)
    assert run.checkpointer.newest == (1, 0)
    assert "is killed by signal: Killed.; the save goes on" in caplog.text


def test_what_is_not_durable_in_time_is_an_error(new_run: NewRun, slow_disk: SlowDisk) -> None:
    run = new_run()
    with pytest.raises(CheckpointError, match=r"not durable after 0 s"):
        run.checkpointer.make_durable(Moment(step=1), seconds=0.1)
    slow_disk.may_go_on.set()


def test_a_moment_whose_save_failed_is_saved_again(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run()
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "write", fail)
        run.begin_save(1)
        until_idle(run.checkpointer)
    run.checkpointer.make_durable(Moment(step=1), seconds=60)
    assert "Input/output error" in caplog.text
    assert "; it is repeated" in caplog.text
    assert [info.step for info in list_checkpoints(run.directory) if info.valid] == [1]


@pytest.mark.parametrize("tolerated", [0, 1])
def test_the_last_save_may_fail_where_failures_are_tolerated(
    tolerated: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(tmp_path, {"model": torch.nn.Linear(2, 2)}, tolerate_failures=tolerated)
    assert checkpointer.finish()
    monkeypatch.setattr(DirectoryStore, "write", fail)
    checkpointer.save(1)
    if tolerated:
        assert not checkpointer.finish()
        assert "; this was failure 1 of 1 in a row that are tolerated" in caplog.text
    else:
        with pytest.raises(CheckpointError, match="Input/output error"):
            checkpointer.finish()


def test_a_failure_of_the_last_save_is_not_forgotten_once_it_was_tolerated(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = new_run(tolerate_failures=1).checkpointer
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "write", fail)
        checkpointer.save(1)
        until_idle(checkpointer)
        checkpointer.check()  # logs it
    assert not checkpointer.finish()
    checkpointer.save(2)
    assert checkpointer.finish()


def test_a_place_says_whether_it_is_empty_and_whether_it_can_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(tmp_path / "run", {"model": torch.nn.Linear(2, 2)})
    checkpointer.check_writable()
    assert checkpointer.is_empty()
    checkpointer.save(1)
    checkpointer.close()
    (tmp_path / "file").touch()
    assert not Checkpointer(tmp_path / "run", {"model": torch.nn.Linear(2, 2)}).is_empty()
    with pytest.raises(CheckpointError, match=str(tmp_path / "file")):
        Checkpointer(tmp_path / "file", {"model": torch.nn.Linear(2, 2)}).check_writable()


def test_it_is_opened_by_open_or_by_the_first_call_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = []
    gather = SaveGroup.gather

    def counted(ranks: Ranks, share: Literal["node", "all"]) -> SaveGroup:
        gathered.append(share)
        return gather(ranks, share)

    monkeypatch.setattr(SaveGroup, "gather", counted)
    with Checkpointer(tmp_path, {"model": torch.nn.Linear(2, 2)}) as checkpointer:
        assert gathered == []  # the block may join the process group first
        checkpointer.open()
        assert gathered == ["node"]
        checkpointer.save(1)
    again = Checkpointer(tmp_path, {"model": torch.nn.Linear(2, 2)})
    assert gathered == ["node"]
    again.load()
    assert gathered == ["node", "node"]
