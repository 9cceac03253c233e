"""Learning rate schedules that go by epochs: one step at each epoch's end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch.optim.lr_scheduler import LRScheduler

ScheduleEach = Literal["step", "epoch"]


class EpochSchedules:
    """Schedules that are stepped at the end of an epoch in which the optimizer really took a step.

    fp16's loss scaler may skip all steps of a short first epoch: a schedule that went on then would warn, and be ahead.
    A part of each checkpoint: an epoch that goes on after a resume is one epoch.

    Args:
        schedulers: They keep their own state.
    """

    def __init__(self, schedulers: Sequence[LRScheduler]) -> None:
        self._schedulers = tuple(schedulers)
        self._has_stepped = False

    def step(self) -> None:
        """Note that the optimizer has taken a step."""
        self._has_stepped = True

    def end_epoch(self) -> None:
        """Step the schedules, if the optimizer has taken a step since the last epoch's end."""
        if self._has_stepped:
            for scheduler in self._schedulers:
                scheduler.step()
        self._has_stepped = False

    def state_dict(self) -> dict[str, bool]:
        """Return what the epoch under way has come to."""
        return {"has_stepped": self._has_stepped}

    def load_state_dict(self, state: Mapping[str, bool]) -> None:
        """Go on in the epoch that was under way."""
        self._has_stepped = state["has_stepped"]
