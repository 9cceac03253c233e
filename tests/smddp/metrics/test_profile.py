from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import smddp.metrics.profile
from smddp import Profile, Trainer
from smddp.distributed import leave
from smddp.job import Job


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    yield
    leave()


def train(tmp_path: Path, profile: Profile, epochs: int = 1, *, resumes: bool = False) -> Path:
    """Eight steps an epoch; returns where the profile should be."""
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    torch.manual_seed(1)
    model = nn.Linear(1, 1)
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.01), profile=profile)
    loader = trainer.loader(TensorDataset(torch.ones(16, 1)), batch_size=2)
    if resumes:
        trainer.resume()
    for _ in trainer.epochs(epochs):
        for (x,) in trainer.batches(loader):
            trainer.step(trainer.model(x).square().mean())
    return job.output_data_dir / "profile" / "rank0.pt.trace.json"


def optimizer_steps(trace: Any) -> int:
    return sum(event["name"].startswith("Optimizer.step") for event in trace["traceEvents"] if event.get("ph") == "X")


@pytest.mark.parametrize(("first", "last", "steps"), [(1, 1, 1), (2, 4, 3), (5, 6, 2), (7, 100, 2)])
def test_the_trace_has_just_these_steps(first: int, last: int, steps: int, tmp_path: Path) -> None:
    trace = json.loads(train(tmp_path, Profile(first=first, last=last)).read_text())
    assert optimizer_steps(trace) == steps
    complete = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    assert {"name", "ts", "dur", "pid", "tid"} <= complete[0].keys()
    assert any("AddmmBackward" in event["name"] for event in complete)


@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 2)])
def test_a_script_that_resumes_by_itself_gets_the_same_steps(first: int, last: int, tmp_path: Path) -> None:
    trace = json.loads(train(tmp_path, Profile(first=first, last=last), resumes=True).read_text())
    assert optimizer_steps(trace) == last - first + 1


def test_a_large_trace_is_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smddp.metrics.profile, "_COMPRESSED_FROM", 100)
    path = train(tmp_path, Profile(first=2, last=2))
    assert not path.exists()
    with gzip.open(f"{path}.gz") as file:
        assert optimizer_steps(json.load(file)) == 1


def test_steps_that_a_resume_has_behind_it_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile = Profile(first=1, last=2)
    train(tmp_path, profile).unlink()
    leave()
    assert not train(tmp_path, profile, epochs=2).exists()
    assert "there is no profile: the run resumes at step 8, beyond Profile(first=1, last=2" in caplog.text


@pytest.mark.parametrize(("first", "last"), [(0, 3), (-1, 3), (4, 3), ("1", 3), (1, 2.5)])
def test_a_range_that_there_is_not_is_refused(first: Any, last: Any) -> None:
    with pytest.raises(ValueError, match="give steps from 1 on, the last not before the first"):
        Profile(first=first, last=last)
