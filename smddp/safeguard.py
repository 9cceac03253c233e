"""Never lose more than seconds of work: when to save, when to stop, and where to go on.

It joins three things that must not be apart: how far training has come, the checkpoints of it, and the agreement of
all ranks to stop. The trainer tells it of each boundary, a moment at which all ranks stand between two steps.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smddp.checkpoint import Checkpointer
from smddp.distributed import Agreement, Membership
from smddp.stopping import Stopped, stop_signal

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Progress:
    """How far training has come; a part of each checkpoint."""

    steps: int = 0
    """Optimizer steps taken since the very first start; one that fp16's loss scaler skipped counts too."""

    epoch: int = 0
    """The epoch under way, from 0."""

    def state_dict(self) -> dict[str, int]:
        """The counters."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes to where the counters were."""
        self.steps, self.epoch = state["steps"], state["epoch"]


class Safeguard:
    """The checkpoints and stops of one training run; all ranks call its methods at the same points.

    Args:
        membership: The ranks.
        every: Steps from one checkpoint to the next, or None.
        seconds: Seconds from one checkpoint to the next by rank 0's clock, or None.
        keep_last: How many checkpoints are kept.
    """

    def __init__(self, membership: Membership, *, every: int | None, seconds: float | None, keep_last: int) -> None:
        self.progress = Progress()
        self.metrics: Mapping[str, float] = {}
        """What was measured last; it goes into the next checkpoint's manifest."""
        self._is_main = membership.cluster.is_main
        self._every = every
        self._keep_last = keep_last
        self._agreement = Agreement(membership, stop_signal, save_seconds=seconds)
        self._checkpointer: Checkpointer | None = None
        self._saved_step = 0

    @property
    def has_started(self) -> bool:
        """Whether ``resume`` was called."""
        return self._checkpointer is not None

    @property
    def next_step(self) -> int:
        """The next step after which something is due, and ``after_step`` must be called."""
        if self._every is None:
            return self._agreement.next_step
        return min(self._agreement.next_step, (self.progress.steps // self._every + 1) * self._every)

    def resume(self, directory: Path, state: Mapping[str, Any]) -> bool:
        """Loads the newest valid checkpoint into the state, if there is one, and saves there from now on.

        Args:
            directory: The job's checkpoint directory.
            state: By name, what has a ``state_dict``; the progress is added.

        Returns:
            Whether there was a checkpoint.
        """
        assert self._checkpointer is None, "a run resumes once"
        self._checkpointer = Checkpointer(directory, {**state, "progress": self.progress}, keep_last=self._keep_last)
        found = self._checkpointer.load() is not None
        step = self._saved_step = self.progress.steps
        self._agreement.start(step)
        if found and self._is_main:
            logger.info("resumed at step %d, in epoch %d", step, self.progress.epoch)
        return found

    def after_step(self) -> None:
        """Saves if a checkpoint is due, and asks the other ranks if it is time to.

        Raises:
            Stopped: If the job was told to stop, after a checkpoint.
        """
        step = self.progress.steps
        if self._every is not None and step % self._every == 0:
            self.save()
        if step >= self._agreement.next_step:
            self.between_steps()

    def between_steps(self) -> None:
        """Asks all ranks whether to stop or to save.

        Raises:
            Stopped: If the job was told to stop, after a checkpoint.
        """
        decision = self._agreement.decide(self.progress.steps)
        if decision.save or decision.stop:
            self.save()
        if decision.stop:
            if self._is_main:
                logger.info("stopped at step %d, in epoch %d", self.progress.steps, self.progress.epoch)
            raise Stopped

    def save(self) -> None:
        """Saves a checkpoint of this step, unless there is one."""
        if self._checkpointer is None or self._saved_step == self.progress.steps:
            return
        self._checkpointer.save(self.progress.steps, epoch=self.progress.epoch, metrics=self.metrics)
        self._saved_step = self.progress.steps
        self._agreement.saved()
