"""Learning rate schedules that go by epochs: one step at each epoch's end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch.optim.lr_scheduler import LRScheduler

ScheduleEach = Literal["step", "epoch"]


class EpochSchedules:
    """Step schedules at the end of each epoch in which the optimizer took a step.

    fp16's loss scaler may skip all steps of a short first epoch; a schedule stepped then would warn and be one epoch
    ahead. The state is part of each checkpoint, so an epoch that a resume continues counts once. The schedules keep
    their own.
    """

    def __init__(self, schedulers: Sequence[LRScheduler]) -> None:
        self._schedulers = tuple(schedulers)
        self._has_stepped = False

    def step(self) -> None:
        """Record that the optimizer has taken a step."""
        self._has_stepped = True

    def end_epoch(self) -> None:
        """Step the schedules if the optimizer has taken a step in this epoch."""
        if self._has_stepped:
            for scheduler in self._schedulers:
                scheduler.step()
        self._has_stepped = False

    def state_dict(self) -> dict[str, bool]:
        """Return whether the optimizer has taken a step in this epoch."""
        return {"has_stepped": self._has_stepped}

    def load_state_dict(self, state: Mapping[str, bool]) -> None:
        """Continue the epoch that was under way."""
        self._has_stepped = state["has_stepped"]
