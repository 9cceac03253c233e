"""A schedule that counts epochs, and is stepped after each optimizer step, is told; so is the reverse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import TensorDataset

from smddp import Job, Trainer
from smddp.training.optimizer_step import ScheduleEach
from smddp.training.schedule_unit import warn_of_other_unit

EPOCHS, STEPS = 3, 10

BY_EPOCH = [
    lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS),
    lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=1),
    lambda optimizer: lr_scheduler.MultiStepLR(optimizer, milestones=[1, 2]),
    lambda optimizer: lr_scheduler.PolynomialLR(optimizer, total_iters=EPOCHS),
    lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=1),
]
BY_STEP = [
    lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * STEPS),
    lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=EPOCHS * STEPS),
]
OF_NO_UNIT = [
    lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.999),
    lambda optimizer: lr_scheduler.MultiStepLR(optimizer, milestones=[]),
    lambda optimizer: lr_scheduler.LinearLR(optimizer, total_iters=2),  # a warm-up
    lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
]


def train(job: Job, schedule: Callable[[torch.optim.Optimizer], LRScheduler], each: ScheduleEach, steps: int) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = Trainer(job, model, optimizer, scheduler=schedule(optimizer), schedule_each=each)
    loader = trainer.loader(TensorDataset(torch.randn(2 * steps, 4)), batch_size=2)
    for _ in trainer.epochs(EPOCHS):
        for (batch,) in trainer.batches(loader):
            trainer.step(trainer.model(batch).square().mean())


@pytest.mark.parametrize("schedule", BY_EPOCH)
def test_a_schedule_of_epochs_that_is_stepped_after_each_step_is_told(
    job: Job, caplog: pytest.LogCaptureFixture, schedule: Callable[[torch.optim.Optimizer], LRScheduler]
) -> None:
    train(job, schedule, "step", STEPS)
    (told,) = [message for message in caplog.messages if "has a length of" in message]
    assert "each of the 10 optimizer steps of an epoch" in told
    assert 'schedule_each="epoch"' in told


@pytest.mark.parametrize("schedule", BY_STEP)
def test_a_schedule_of_steps_that_is_stepped_after_each_epoch_is_told(
    job: Job, caplog: pytest.LogCaptureFixture, schedule: Callable[[torch.optim.Optimizer], LRScheduler]
) -> None:
    train(job, schedule, "epoch", STEPS)
    assert 'has a length of 30, and schedule_each="epoch" steps it 3 times' in caplog.text


@pytest.mark.parametrize(
    ("schedules", "each", "steps"),
    [
        (BY_EPOCH, "epoch", STEPS),
        (BY_STEP, "step", STEPS),
        (OF_NO_UNIT, "step", STEPS),
        (OF_NO_UNIT, "epoch", STEPS),
        (BY_EPOCH, "step", STEPS - 1),
    ],
    ids=["epochs", "steps", "step of no unit", "epoch of no unit", "a trial"],
)
def test_a_schedule_that_may_count_in_its_unit_is_not_told(
    caplog: pytest.LogCaptureFixture,
    schedules: list[Callable[[torch.optim.Optimizer], LRScheduler]],
    each: ScheduleEach,
    steps: int,
) -> None:
    for make in schedules:
        optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.01)
        warn_of_other_unit([make(optimizer)], each, epochs=EPOCHS, steps_per_epoch=steps)
    assert not caplog.records
