"""Schedules by epoch, and by a metric: when they go on, and where after a resume."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from torch.utils.data import TensorDataset

from smddp import CheckpointPolicy, Trainer
from smddp.checkpoint.parts.script_options import OnChange
from smddp.distributed import ranks
from smddp.job import Job
from smddp.process.preemption import Stopped, stop_signal


@pytest.fixture(autouse=True)
def _slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks look up after each step where steps are slow."""
    monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=itertools.count().__next__))


class Run:
    """Four steps an epoch, at a learning rate that halves with each epoch."""

    def __init__(self, job: Job, *, lr: float = 1.0, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        scheduler = ExponentialLR(self.optimizer, gamma=0.5)
        self.trainer = Trainer(job, self.model, self.optimizer, scheduler=scheduler, schedule_each="epoch", **options)
        self.loader = self.trainer.loader(TensorDataset(torch.ones(8, 1)), batch_size=2)

    def train(self, epochs: int, *, scale: float = 1e-3, stop_at: int | None = None) -> list[float]:
        """The learning rate of each step."""
        rates = []
        for _ in self.trainer.epochs(epochs):
            for (batch,) in self.trainer.batches(self.loader):
                rates.append(self.optimizer.param_groups[0]["lr"])
                stop_signal.requested = self.trainer.steps + 1 == stop_at
                self.trainer.step(self.trainer.model(batch).mean() * scale)
        return rates


def test_it_goes_on_at_each_epochs_end_before_its_checkpoint(job: Job) -> None:
    assert Run(job).train(2) == [1.0] * 4 + [0.5] * 4
    assert Run(job).train(3) == [0.25] * 4


def test_an_epoch_that_a_stop_cut_in_two_is_one(job: Job) -> None:
    with pytest.raises(Stopped):
        Run(job).train(2, stop_at=3)
    stop_signal.requested = False
    assert Run(job).train(2)[1:] == [0.5] * 4


def test_an_epoch_whose_steps_fp16_skipped_all_moves_no_schedule(job: Job) -> None:
    run = Run(job, precision="fp16")
    assert run.train(1, scale=float("inf")) == [1.0] * 4
    assert run.train(3) == [1.0] * 4 + [0.5] * 4


def test_steps_before_a_stop_count_for_the_epoch_whose_rest_fp16_skips(job: Job) -> None:
    with pytest.raises(Stopped):
        Run(job, precision="fp16").train(1, stop_at=3)
    stop_signal.requested = False
    run = Run(job, precision="fp16")
    run.train(1, scale=float("inf"))
    assert run.optimizer.param_groups[0]["lr"] == 0.5


def test_a_resume_can_take_the_scripts_learning_rate(job: Job) -> None:
    Run(job).train(1)
    policy = CheckpointPolicy(on_change="take")
    assert Run(job, lr=8.0, checkpoints=policy).train(3) == [4.0] * 4 + [2.0] * 4


def test_a_loop_that_counts_steps_has_epochs_too(job: Job) -> None:
    run = Run(job)
    batches = run.trainer.batches(run.loader)
    rates = []
    for _ in run.trainer.steps_to(9):
        (batch,) = next(batches)
        rates.append(run.optimizer.param_groups[0]["lr"])
        run.trainer.step(run.trainer.model(batch).mean())
    assert rates == [1.0] * 4 + [0.5] * 4 + [0.25]


def test_a_trainer_in_the_state_of_another_follows_the_epochs_of_that_one(job: Job) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = ExponentialLR(optimizer, gamma=0.5)
    kept = Trainer(job, model, optimizer, scheduler=scheduler, schedule_each="epoch")
    run = Run(job, state={"kept": kept})
    rates = []
    for _ in run.trainer.epochs(2):
        rates.append(optimizer.param_groups[0]["lr"])
        kept.step(kept.model(torch.ones(1, 1)).mean())
    assert rates == [1.0, 0.5]


def test_a_word_that_is_neither_step_nor_epoch_is_refused(job: Job) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"schedule_each='batch': give \"step\" \(an optimizer step\) or \"epoch\""):
        Trainer(job, model, torch.optim.SGD(model.parameters()), schedule_each="batch")  # type: ignore[arg-type]


def train_on_plateaus(job: Job, epochs: int, on_change: OnChange) -> list[float]:
    """A schedule by a metric stays with the script, which calls it after each evaluation."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    policy = CheckpointPolicy(on_change=on_change)
    trainer = Trainer(job, model, optimizer, state={"plateau": plateau}, checkpoints=policy)
    rates = []
    for epoch in trainer.epochs(epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        trainer.step(trainer.model(torch.ones(1, 1)).mean() * 1e-3)
        plateau.step([3.0, 2.0, 2.0, 2.0, 2.5, 2.5, 2.5][epoch])
    return rates


@pytest.mark.parametrize("on_change", ["keep", "take", "refuse"])
def test_a_schedule_by_a_metric_resumes_between_two_evaluations_that_are_no_better(
    tmp_path: Path, on_change: OnChange
) -> None:
    undisturbed = train_on_plateaus(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "undisturbed")}), 7, on_change)
    assert undisturbed == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25]
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    resumed = [rate for epochs in (3, 6, 7) for rate in train_on_plateaus(job, epochs, on_change)]
    assert resumed == undisturbed


@pytest.mark.parametrize("each", ["step", "epoch"])
def test_a_schedule_by_a_metric_is_refused_with_the_way_to_have_it(job: Job, each: Any) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ValueError, match=r'state=\{"plateau": scheduler\}, and call scheduler.step\(metric\)'):
        Trainer(job, model, optimizer, scheduler=ReduceLROnPlateau(optimizer), schedule_each=each)  # type: ignore[arg-type]
