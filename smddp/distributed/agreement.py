"""How ranks agree, at a step's boundary, to stop or to save: by one tiny reduction, a few times a second.

A rank that alone saw SIGTERM must not leave the others waiting in their next collective. So each rank's wish travels
in a vector of three numbers that all ranks reduce at the same step, and the next such step follows from that vector
too: it is the same on all ranks without asking again. Between these steps a rank compares two integers and no more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from smddp.distributed.membership import Membership
from smddp.stopping import StopSignal

_SECONDS_APART = 0.25
_MOST_STEPS_APART = 50  # so that a stop is heard within a minute even if steps become a thousand times slower


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What all ranks do now."""

    stop: bool
    """At least one rank was asked to stop."""

    save: bool
    """Rank 0's clock says that a checkpoint is due."""


class Agreement:
    """The agreements of one training run; every rank must call ``decide`` at the same points."""

    def __init__(self, membership: Membership, stop_signal: StopSignal, *, save_seconds: float | None = None) -> None:
        self.next_step = 1
        """The step at which to decide next; until then there is nothing to ask."""
        self._membership = membership
        self._stop_signal = stop_signal
        self._save_seconds = save_seconds
        self._vector = torch.zeros(3, dtype=torch.float64, device=membership.control_device)
        self._steps_apart = 1
        self._last_step = 0
        self._last_time = self._last_save = time.monotonic()

    def start(self, step: int) -> None:
        """Counts from this step on, after a resume."""
        self._last_step = step
        self.next_step = step + 1
        self._last_time = self._last_save = time.monotonic()

    def decide(self, step: int) -> Decision:
        """Asks all ranks, and sets ``next_step``.

        The first steps are asked one by one, then twice as far apart each time, up to a quarter of a second or 50
        steps.
        """
        now = time.monotonic()
        taken = max(step - self._last_step, 1)
        stop, save, seconds_a_step = self._largest(
            float(self._stop_signal.requested),
            float(self._save_seconds is not None and now - self._last_save >= self._save_seconds),
            (now - self._last_time) / taken,
        )
        if step > self._last_step:
            affordable = int(_SECONDS_APART / max(seconds_a_step, 1e-9))
            self._steps_apart = max(1, min(2 * self._steps_apart, affordable, _MOST_STEPS_APART))
        self.next_step = step + self._steps_apart
        self._last_step, self._last_time = step, now
        return Decision(stop=stop > 0, save=save > 0)

    def saved(self) -> None:
        """Tells that a checkpoint was saved, whatever the reason: the clock starts again."""
        self._last_save = time.monotonic()

    def _largest(self, stop: float, save: float, seconds_a_step: float) -> tuple[float, float, float]:
        if self._membership.store is None:
            return stop, save, seconds_a_step
        if not self._membership.cluster.is_main:
            save = 0.0
        self._vector.copy_(torch.tensor([stop, save, seconds_a_step], dtype=torch.float64))
        dist.all_reduce(self._vector, op=dist.ReduceOp.MAX)
        stop, save, seconds_a_step = self._vector.tolist()
        return stop, save, seconds_a_step
