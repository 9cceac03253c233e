"""A learning rate schedule that counts in another unit than it is stepped in: epochs or optimizer steps.

A schedule of 90 epochs that is stepped after each optimizer step ends within the first epoch. One of 90,000 optimizer
steps that is stepped after each epoch hardly changes the rate. PyTorch notices neither.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    StepLR,
)

from smddp.training.optimizer_step import ScheduleEach

logger = logging.getLogger(__name__)

_LEAST_STEPS = 10
"""With fewer optimizer steps an epoch, as in a trial, the units are too close to be told apart."""
_STEEP = 0.5
"""A StepLR with a larger factor may be meant for every step: it decays as smoothly as an exponential."""


def warn_of_other_unit(
    schedulers: Iterable[LRScheduler], each: ScheduleEach, *, epochs: int, steps_per_epoch: int
) -> None:
    """Warn of schedules that seem to count in the other unit, for a training of so many epochs."""
    if steps_per_epoch < _LEAST_STEPS:
        return
    for scheduler in schedulers:
        name, length = type(scheduler).__name__, _length(scheduler)
        if length is None:
            continue
        if each == "step" and length <= epochs:
            logger.warning(
                "%s has a length of %d, and is stepped after each of the %d optimizer steps of an epoch. If it counts "
                'epochs, give the Trainer schedule_each="epoch"; else multiply its length by the steps of an epoch',
                name,
                length,
                steps_per_epoch,
            )
        elif each == "epoch" and length >= epochs * steps_per_epoch:
            logger.warning(
                '%s has a length of %d, and schedule_each="epoch" steps it %d times. If it counts optimizer steps, '
                "leave schedule_each out",
                name,
                length,
                epochs,
            )


def _length(scheduler: LRScheduler) -> int | None:
    """Return after how many steps a schedule of torch has lowered the rate, or None if that is unknown."""
    match scheduler:
        case CosineAnnealingLR():
            return int(scheduler.T_max)
        case CosineAnnealingWarmRestarts():
            return int(scheduler.T_0)
        case MultiStepLR():
            return max(scheduler.milestones, default=None)
        case OneCycleLR():
            return int(scheduler.total_steps)
        case PolynomialLR():
            return int(scheduler.total_iters)
        case StepLR() if scheduler.gamma <= _STEEP:
            return int(scheduler.step_size)
    return None
