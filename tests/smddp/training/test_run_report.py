import gc
import itertools
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import smddp
from smddp import CheckpointPolicy, Trainer
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.distributed import leave, ranks
from smddp.job import Job
from smddp.metrics import CsvFile, Status, TrackedRun, Tracker
from smddp.process.heartbeat import Heartbeat
from smddp.process.preemption import Stopped, stop_signal
from smddp.training.active_runs import active_runs
from smddp.training.progress import Progress


@pytest.fixture(autouse=True)
def _slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks look up after each step where steps are slow."""
    monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=itertools.count().__next__))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run"), "SM_HPS": '{"lr": 0.1}'})


class Told(Tracker):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def start(self, run: TrackedRun) -> None:
        self.calls.append(("start", run.step, run.id, dict(run.job.hyperparameters)))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.calls.append(("log", step, sorted(metrics)))

    def checkpoint(self, step: int, place: str) -> None:
        self.calls.append(("checkpoint", step, place))

    def finish(self, status: Status, model: str | None) -> None:
        self.calls.append(("finish", status, model))


def train(job: Job, epochs: int, tracker: Tracker, *, stop_at: int | None = None, **options: Any) -> None:
    """What main() under smddp.run does; the trainer is garbage at its end."""
    torch.manual_seed(1)
    model = nn.Linear(1, 1)
    policy = CheckpointPolicy(every=10**6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = Trainer(job, model, optimizer, trackers=[tracker], checkpoints=policy, log_every=2, **options)
    loader = trainer.loader(TensorDataset(torch.ones(8, 1)), batch_size=2)
    for _ in trainer.epochs(epochs):
        for (x,) in trainer.batches(loader):
            trainer.step(trainer.model(x).square().mean())
            stop_signal.requested = trainer.steps == stop_at
        trainer.log(accuracy=0.5)
    trainer.save_model()


@contextmanager
def script() -> Iterator[None]:
    """What smddp.run does around main()."""
    with ExitStack() as views, ExitStack() as saves, active_runs.until_script_ends(saves, views):
        yield


def test_a_tracker_is_told_of_a_run_and_of_the_same_one_after_a_resume(job: Job) -> None:
    first, second = Told(), Told()
    with script(), pytest.raises(Stopped):
        train(job, 2, first, stop_at=5)
    stop_signal.requested = False
    with script():
        train(job, 2, second)

    own = ["epoch", "loss", "lr", "samples_per_second"]
    (_, step, run, hyperparameters), *calls = first.calls
    assert (step, hyperparameters) == (0, {"lr": 0.1})
    assert calls == [
        ("log", 2, own),
        ("log", 4, own),
        ("log", 4, ["accuracy", "epoch"]),
        ("checkpoint", 5, str(job.checkpoint_dir / "step-000000000005")),
        ("finish", "stopped", None),
    ]
    assert second.calls[0] == ("start", 5, run, {"lr": 0.1})
    assert second.calls[-1] == ("finish", "finished", str(job.model_dir))
    lines = [json.loads(line) for line in (job.output_data_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [2, 4, 6, 8]
    assert [line["status"] for line in lines if line.get("event") == "end"] == ["stopped", "finished"]


def test_the_last_line_counts_the_steps_and_the_seconds_of_all_attempts(
    job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    saved = Progress.state_dict
    monkeypatch.setattr(Progress, "state_dict", lambda self: {**saved(self), "seconds": 100.0})
    with script(), pytest.raises(Stopped):
        train(job, 2, Told(), stop_at=5)
    assert "done: " not in caplog.text
    stop_signal.requested = False
    with script():
        train(job, 2, Told())
    told = rf"done: 2 epochs, 8 steps in 1:[45]\d min; saved step 8; model in {re.escape(str(job.model_dir))}"
    assert any(re.fullmatch(told, each) for each in caplog.messages), caplog.text


def test_the_last_line_of_one_epoch_has_no_plural(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with script():
        train(job, 1, Told())
    assert "done: 1 epoch, 4 steps in " in caplog.text
    (saved,) = [message for message in caplog.messages if message.startswith("saved ")]
    assert " kB in " in saved


def test_a_loop_without_a_line_so_far_says_at_which_step_it_is(
    job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("smddp.training.run_report.Heartbeat", partial(Heartbeat, every=0.02))
    model = nn.Linear(1, 1)
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.01), log_every=2)
    loader = trainer.loader(TensorDataset(torch.ones(8, 1)), batch_size=2)
    deadline = time.monotonic() + 30
    for _ in trainer.epochs(1):
        for (x,) in trainer.batches(loader):
            while trainer.steps == 1 and "training, at step 1: " not in caplog.text:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            trainer.step(trainer.model(x).square().mean())
            if trainer.steps == 2:  # it has a line
                time.sleep(0.1)
    assert caplog.text.count("training, at step 2") <= 1  # one may be under way when the line comes


def test_a_failure_is_told_and_a_script_without_smddp_run_ends_its_trackers_too(job: Job) -> None:
    failed, alone = Told(), Told()
    with pytest.raises(ZeroDivisionError), script():
        train(job, 1, failed)
        raise ZeroDivisionError
    train(job, 2, alone)
    gc.collect()
    assert failed.calls[-1][:2] == ("finish", "failed")
    assert alone.calls[-1] == ("finish", "finished", str(job.model_dir))


def run(tracker: Tracker, ending: Callable[[Trainer], None]) -> object:
    """Run a script with a loop of its own of two steps, of which the first is saved; return the exit code."""

    def main(job: Job) -> None:
        model = nn.Linear(1, 1)
        policy = CheckpointPolicy(seconds=None, tolerate_failures=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        trainer = Trainer(job, model, optimizer, trackers=[tracker], checkpoints=policy)
        for step in (1, 2):
            trainer.step(trainer.model(torch.ones(2, 1)).square().mean())
            if step == 1:
                trainer.save(wait=True)
        ending(trainer)

    with pytest.raises(SystemExit) as end:
        smddp.run(main)
    return end.value.code


def test_a_tracker_is_told_of_the_last_checkpoint_before_the_end(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("SMDDP_RUN_DIR", str(job.output_dir.parent))
    may_commit, commit = threading.Event(), DirectoryStore.commit

    def late(*arguments: Any, **options: Any) -> None:
        assert may_commit.wait(30)
        commit(*arguments, **options)

    def save(trainer: Trainer) -> None:
        monkeypatch.setattr(DirectoryStore, "commit", late)
        trainer.save()
        threading.Timer(0.3, may_commit.set).start()  # main has returned by then

    told = Told()
    assert run(told, save) == 0
    assert told.calls[-2:] == [
        ("checkpoint", 2, str(job.checkpoint_dir / "step-000000000002")),
        ("finish", "finished", None),
    ]
    assert [line for line in caplog.messages if line.startswith("done: 2 steps in ") and line.endswith("saved step 2")]


@pytest.mark.parametrize("stops", [False, True])
def test_a_tracker_is_told_of_a_failure_if_the_last_save_fails(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stops: bool
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("SMDDP_RUN_DIR", str(job.output_dir.parent))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    def save(trainer: Trainer) -> None:
        monkeypatch.setattr(DirectoryStore, "commit", full)
        trainer.save()
        if stops:
            raise Stopped

    told = Told()
    assert run(told, save) == 1
    assert told.calls[-1] == ("finish", "failed", None)
    assert "done: " not in caplog.text


def test_a_tracker_is_told_of_a_failure_if_a_script_calls_its_end_resumable_and_it_is_not(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMDDP_RUN_DIR", str(job.output_dir.parent))
    told = Told()
    assert run(told, lambda _: sys.exit(75)) == 1
    assert told.calls[-1] == ("finish", "failed", None)


CRASH = """
import torch, smddp
model = torch.nn.Linear(1, 1)
trainer = smddp.Trainer(smddp.Job.detect(), model, torch.optim.SGD(model.parameters(), lr=0.1))
trainer.resume()
ERROR
"""


@pytest.mark.parametrize(("end", "status"), [("1 / 0", "failed"), ("", "finished")])
def test_how_a_script_without_smddp_run_ended_is_told(
    job: Job, run_ranks: Callable[..., Any], end: str, status: str
) -> None:
    run_ranks(CRASH.replace("ERROR", end), [{"SMDDP_RUN_DIR": str(job.output_dir.parent)}])
    lines = (job.output_data_dir / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["status"] == status


def test_trainers_of_other_names_have_files_of_their_own(job: Job) -> None:
    for name in ("generator", "critic"):
        train(job, 1, CsvFile(), name=name)
        assert (job.output_data_dir / name / "metrics.jsonl").exists()
        assert (job.output_data_dir / name / "metrics.csv").exists()


def test_a_trainer_that_another_keeps_has_files_a_run_and_the_epochs_of_its_loop(job: Job) -> None:
    def train(epochs: int) -> list[str]:
        models = [nn.Linear(1, 1) for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
        told = [Told(), Told()]
        kept = Trainer(job, models[0], optimizers[0], log_every=2, trackers=[told[0]])
        trainer = Trainer(job, models[1], optimizers[1], log_every=2, trackers=[told[1]], state={"generator": kept})
        loader = trainer.loader(TensorDataset(torch.ones(8, 1)), batch_size=2)
        for _ in trainer.epochs(epochs):
            for (x,) in trainer.batches(loader):
                trainer.step(trainer.model(x).square().mean())
                kept.step(kept.model(x).square().mean())
        return [each.calls[0][2] for each in told]

    runs = train(epochs=1)
    assert len({*runs, ""}) == 3
    leave()
    gc.collect()
    assert train(epochs=2) == runs
    for directory in (job.output_data_dir, job.output_data_dir / "generator"):
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        assert [(line["step"], line["epoch"]) for line in lines if "loss" in line] == [(2, 0), (4, 0), (6, 1), (8, 1)]


def test_what_is_no_tracker_is_refused_before_training(job: Job) -> None:
    with pytest.raises(TypeError, match="which is no tracker"):
        train(job, 1, print)  # type: ignore[arg-type]


def test_a_fast_epoch_has_its_loss_in_the_log_before_the_scripts_metrics(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    model = nn.Linear(1, 1)
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = trainer.loader(TensorDataset(torch.ones(100, 1)), batch_size=1)
    for epoch in trainer.epochs(3):
        for (batch,) in trainer.batches(loader):
            trainer.step(trainer.model(batch).square().mean())
        trainer.log(accuracy=epoch)
    lines = [message for message in caplog.messages if message.startswith("step=")]
    for step in (100, 200, 300):
        loss, accuracy = (line for line in lines if line.startswith(f"step={step} "))
        assert " loss=" in loss
        assert " accuracy=" in accuracy
