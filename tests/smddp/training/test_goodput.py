"""The ledger of a Trainer: each part of an attempt's time is counted where it is spent."""

from __future__ import annotations

import gc
import logging
import math
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion
from torch.utils.data import Dataset

import smddp
from smddp.checkpoint.stores import open_store
from smddp.goodput import read_account
from smddp.goodput.attempt import read_attempts
from smddp.job import Job
from smddp.training.active_runs import active_runs
from tests.torture.s3_server import s3_server


class Slow(Dataset[Tensor]):
    """Samples that take 5 ms each."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.005)
        return torch.ones(4) * index


def trainer(job: Job, every: int = 3) -> smddp.Trainer:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    return smddp.Trainer(job, model, optimizer, checkpoints=smddp.CheckpointPolicy(every=every, seconds=None))


def end(end: str = "finished") -> None:
    for run in active_runs.open_runs():
        if end == "finished":
            run.__exit__(None, None, None)
        else:
            assert run.checkpointer.wait(30)  # a script that fails gives a save ten seconds
            run.end_ledger("failed")
        run.is_open = False


def parts(job: Job) -> dict[str, float]:
    return read_account(open_store(job.checkpoint_location)).seconds


def test_waits_for_data_evaluation_and_training_are_apart(job: Job) -> None:
    opened = time.perf_counter()
    training = trainer(job)
    made = time.perf_counter()
    loader, others = training.loader(Slow(), 4), training.evaluation_loader(Slow(), 4)
    for _ in training.epochs(2):
        for batch in training.batches(loader):  # 4 batches of 20 ms
            time.sleep(0.03)
            training.step(training.model(batch).sum())
        with torch.no_grad():
            for batch in training.batches(others):
                time.sleep(0.01)
                training.model(batch)
        for _batch in training.batches(others):  # known as an evaluation by its loader
            time.sleep(0.01)
    done = time.perf_counter()
    end()
    ended, found = time.perf_counter(), parts(job)
    assert found["data"] >= 8 * 0.02
    assert found["training"] >= 8 * 0.03
    assert found["evaluation"] >= 4 * 4 * 0.03
    assert found["checkpoint"] > 0
    assert found["lost"] == found["waiting"] == found["hang"] == 0
    [attempt] = read_attempts(open_store(job.checkpoint_location))[0]
    assert done - made - 0.01 <= attempt.ended - attempt.began <= ended - opened + 0.01


def test_the_next_attempt_loses_what_the_last_save_did_not_have(job: Job) -> None:
    first = trainer(job)
    loader = first.loader(Slow(), 2)
    for _ in first.epochs(1):
        for batch in first.batches(loader):
            first.step(first.model(batch).sum())
            if first.steps == 5:
                break
        break
    end("failed")
    smddp.leave()
    second = trainer(job)
    loader = second.loader(Slow(), 2)
    for _ in second.epochs(1):
        for batch in second.batches(loader):
            second.step(second.model(batch).sum())
    end()
    found = read_account(open_store(job.checkpoint_location))
    assert [(each.end, each.lost_steps) for each in found.attempts] == [("failed", 2), ("finished", 0)]
    assert found.seconds["lost"] >= 0.02


def test_a_loop_over_steps_counts_each_epochs_first_wait_as_data(job: Job) -> None:
    training = trainer(job, every=100)
    batches = training.batches(training.loader(Slow(), 16))
    for _ in training.steps_to(4):  # an epoch each
        batch = next(batches)
        training.step(training.model(batch).sum())
    time.sleep(0.1)
    end()
    found = parts(job)
    assert found["data"] >= 4 * 16 * 0.005
    assert found["other"] >= 0.1


def test_a_loop_of_its_own_counts_as_training(job: Job) -> None:
    training = trainer(job)
    for step in range(4):
        time.sleep(0.02)
        training.step(training.model(torch.ones(2, 4) * step).sum())
    training.save(wait=True)
    end()
    found = parts(job)
    assert found["training"] >= 3 * 0.02
    assert found["data"] == 0


def test_a_trainer_within_another_ones_batch_ends_no_training(job: Job) -> None:
    training, other = trainer(job), torch.utils.data.DataLoader(Slow(), 8)
    for batch in training.batches(training.loader(Slow(), 16)):
        for inner in training.batches(other):
            training.step(training.model(inner).sum())
        assert training._clock.part == "training"
        training.step(training.model(batch).sum())
    end()
    [found] = read_attempts(open_store(job.checkpoint_location))[0]
    assert found.seconds["data"] >= 2 * 16 * 0.005


def test_a_named_trainer_has_a_ledger_of_its_own(job: Job) -> None:
    model = nn.Linear(4, 1)
    training = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), name="generator")
    training.step(training.model(torch.ones(2, 4)).sum())
    end()
    assert len(read_account(open_store(job.part("generator").checkpoint_location)).attempts) == 1
    assert not read_account(open_store(job.checkpoint_location)).attempts


@pytest.mark.parametrize(
    ("ending", "code", "end"),
    [
        (KeyboardInterrupt, 130, "failed"),
        (ValueError, 1, "failed"),
        (smddp.Stopped, 75, "stopped"),
        (None, 0, "finished"),
    ],
)
def test_under_run_the_record_says_how_the_attempt_ended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ending: type[BaseException] | None,
    code: int,
    end: str,
) -> None:
    monkeypatch.setenv("SMDDP_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    caplog.set_level(logging.INFO)

    def main(job: Job) -> None:
        training = trainer(job)
        training.step(training.model(torch.ones(2, 4)).sum())
        training.save(wait=True)
        if ending is not None:
            raise ending

    with pytest.raises(SystemExit) as ended:
        smddp.run(main)
    assert ended.value.code == code
    [found] = read_account(open_store(str(tmp_path / "run" / "checkpoints"))).attempts
    assert (found.end, found.attempt.step, found.lost_steps) == (end, 1, 0)
    lines = [line for line in caplog.messages if " goodput=" in line]
    assert [line.split()[:2] for line in lines] == ([] if code == 130 else [["step=1", "epoch=1"]])


@pytest.mark.parametrize(("code", "end"), [(0, "finished"), (75, "stopped"), (1, "failed")])
def test_under_run_a_loop_around_a_checkpointer_has_a_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, end: str
) -> None:
    monkeypatch.setenv("SMDDP_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    gc.collect()  # the trainers of other tests

    def main(job: Job) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with smddp.Checkpointer(job.checkpoint_location, {"model": model}) as checkpointer:
            assert checkpointer.load() is None
            time.sleep(0.1)
            for step in range(1, 5):
                model(torch.ones(4)).sum().backward()
                optimizer.step()
                time.sleep(0.05)
                if step in (2, 3):
                    checkpointer.save(step)
                    with monkeypatch.context() as patched:
                        patched.setattr(checkpointer._saves, "wait", lambda _: time.sleep(0.1))
                        checkpointer.wait()
        raise SystemExit(code)

    with pytest.raises(SystemExit):
        smddp.run(main)
    account = read_account(open_store(str(tmp_path / "run" / "checkpoints")))
    [found] = account.attempts
    assert (found.end, found.attempt.step, found.attempt.loop) == (end, 3, "script")
    assert [mark.step for mark in found.attempt.marks] == [0, 2, 3]
    assert found.attempt.seconds["start"] >= 0.1
    assert found.attempt.seconds["checkpoint"] >= 2 * 0.1
    assert found.attempt.seconds["other"] >= 4 * 0.05
    assert account.goodput == 0
    assert account.most_goodput == pytest.approx(account.shares["other"])


def test_a_checkpointer_beside_a_trainer_or_outside_of_run_has_no_ledger(job: Job, tmp_path: Path) -> None:
    training = trainer(job)
    training.step(training.model(torch.ones(2, 4)).sum())
    with active_runs.until_script_ends(ExitStack(), ExitStack()):
        other = smddp.Checkpointer(tmp_path / "other", {"model": nn.Linear(1, 1)})
        other.save(1)
        other.close()
    assert not read_account(open_store(tmp_path / "other")).attempts
    end()
    assert len(read_account(open_store(job.checkpoint_location)).attempts) == 1
    assert smddp.Checkpointer.observe is None


@pytest.mark.seaweedfs
def test_the_ledger_goes_where_the_checkpoints_go_into_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path / "server") as server:
        server.client().create_bucket(Bucket="saves")
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        uri = "s3://saves/run"
        job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run"), "SMDDP_CHECKPOINT_S3_URI": uri})
        for _ in range(2):
            training = trainer(job)
            loader = training.loader(Slow(), 4)
            for _ in training.epochs(2, max_steps=training.steps + 3 if training.resume() else 3):
                for batch in training.batches(loader):
                    training.step(training.model(batch).sum())
            end()
            smddp.leave()
        found = read_account(open_store(uri))
    assert [(each.attempt.resumed, each.attempt.step, each.end) for each in found.attempts] == [
        (0, 3, "finished"),
        (3, 6, "finished"),
    ]
    assert found.seconds["data"] >= 6 * 4 * 0.005
    assert not list((tmp_path / "run").rglob("goodput"))


@pytest.mark.skipif(TorchVersion(torch.__version__) < "2.6", reason="on_nonfinite needs PyTorch 2.6")
def test_what_a_rewind_undoes_is_lost(job: Job) -> None:
    model = nn.Linear(4, 1)
    training = smddp.Trainer(
        job,
        model,
        torch.optim.SGD(model.parameters(), lr=1e-4),
        checkpoints=smddp.CheckpointPolicy(every=3, seconds=None),
        on_nonfinite="rewind",
    )
    for batch in range(1, 9):  # batch 6 goes back from step 5 to step 3
        time.sleep(0.05)
        training.step(training.model(torch.ones(2, 4) * (math.nan if batch == 6 else 1)).sum())
    end()
    (attempt,) = read_account(open_store(job.checkpoint_location)).attempts
    assert (attempt.attempt.step, attempt.lost_steps) == (5, 3)
    assert attempt.seconds["lost"] >= 0.15  # batches 4 to 6
    assert attempt.seconds["training"] >= 0.2
