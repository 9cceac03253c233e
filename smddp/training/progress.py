"""The progress of a training: its steps, epoch, seconds and id, as each checkpoint contains them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Progress:
    """The progress of training; part of each checkpoint."""

    steps: int = 0
    """Optimizer steps taken since the very first start; steps that fp16's loss scaler skipped count, too."""

    epoch: int = 0
    """The epoch under way, from 0."""

    finished: bool = False
    """Whether the script has ended the training, by ``finish_if``."""

    training_id: str = ""
    """The id of this training, the same after each resume; empty until it begins. A manifest's ``run`` is another id,
    new at each start of the job."""

    first_ranks: list[int] = field(default_factory=list)
    """For each rank the first one that computes on the same data; empty if each rank computes on data of its own."""

    item_unit: float = 0.0
    """The unit of the number of items in losses with a ``weight``; 0.0 until one comes. A loss scale that an earlier
    attempt has found holds only with the same unit."""

    earlier_seconds: float = 0.0
    """Seconds of the earlier attempts, each up to its last checkpoint."""

    began: float = field(default_factory=time.monotonic)
    """The beginning of this attempt."""

    @property
    def seconds(self) -> float:
        """Seconds of training in all attempts, by this rank's clock."""
        return self.earlier_seconds + time.monotonic() - self.began

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, with rank 0's seconds."""
        return {
            "steps": self.steps,
            "epoch": self.epoch,
            "finished": self.finished,
            "run": self.training_id,  # the key is older than the name
            "seconds": round(self.seconds, 3),
            **({"first_ranks": self.first_ranks} if self.first_ranks else {}),
            **({"item_unit": self.item_unit} if self.item_unit else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counters."""
        self.earlier_seconds = float(state.get("seconds", 0.0))  # absent in older checkpoints
        self.steps, self.epoch = state["steps"], state["epoch"]
        self.finished = bool(state.get("finished", False))  # absent in older checkpoints
        self.item_unit = float(state.get("item_unit", 0.0))
        self.training_id = state.get("run", "")  # absent in older checkpoints
        self.first_ranks = list(state.get("first_ranks", []))
