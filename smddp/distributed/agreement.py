"""How ranks agree, between two steps, to stop, to save or to fail: by one tiny reduction, a few times a second.

If one rank alone sees SIGTERM, or its checkpoint fails, it must not leave the others waiting in their next collective:

1. At a step that all ranks know, each puts its own knowledge into a vector of eight numbers.
2. One all-reduce (MAX) gives all ranks the same vector, and so the same decision.
3. The next such step is computed from the vector too, so it is the same on all ranks without another question.
4. Until that step, a rank only compares two integers.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from smddp.distributed.membership import Membership
from smddp.process.preemption import StopSignal

_SECONDS_APART = 0.25
_MOST_STEPS_APART = 50  # bounds how late a stop is noticed if steps become much slower suddenly


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision of all ranks, the same on each."""

    stop: bool
    """At least one rank was asked to stop."""

    stop_age: float
    """Seconds since the first rank was asked to stop; -1 if none was."""

    save: bool
    """A checkpoint is due, by rank 0's clock or request."""

    failed: bool
    """At least one rank knows of a failure that must end the run."""

    held: bool
    """At least one rank's model holds exchanged weights, and the trained weights are in no checkpoint."""

    metrics_differ: bool
    """Two ranks reported different ``metrics``."""

    stall: float
    """The largest ``stall`` of all ranks, because the others waited for that rank."""


class Agreement:
    """The agreements of one training run; every rank must call ``decide`` at the same points."""

    def __init__(self, membership: Membership, stop_signal: StopSignal, *, save_seconds: float | None = None) -> None:
        self.next_step = 1
        """The step at which to call ``decide`` next."""
        self.save_seconds = save_seconds
        """Seconds from one checkpoint to the next, or None. Only rank 0's value counts, and it may change."""
        self._membership = membership
        self._stop_signal = stop_signal
        stop_signal.heeded = True
        self._vector = torch.zeros(8, dtype=torch.float64, device=membership.control_device)
        self._steps_apart = 1
        self._last_step = 0
        self._last_time = self._last_save = time.monotonic()

    def start(self, step: int) -> None:
        """Restart the clocks at this step, after a resume."""
        self._last_step = step
        self.next_step = step + 1
        self._last_time = self._last_save = time.monotonic()

    def decide(
        self,
        step: int,
        *,
        failed: bool = False,
        held: bool = False,
        stall: float = 0.0,
        save: bool = False,
        metrics: float = 0.0,
    ) -> Decision:
        """Return the decision of all ranks, and set ``next_step``; collective.

        The distance to the next decision begins at one step and doubles, up to a quarter of a second or 50 steps.
        ``step`` is the same on all ranks, ``stall`` the seconds that this rank's last save held up training. Only rank
        0's ``save`` counts. ``metrics`` is a positive digest of this rank's metrics, or 0 for none.
        """
        now = time.monotonic()
        taken = max(step - self._last_step, 1)
        is_due = self.save_seconds is not None and now - self._last_save >= self.save_seconds
        stop_age, to_save, any_failed, any_held, seconds_a_step, slowest_stall, highest, minus_lowest = self._largest(
            self._stop_signal.age,
            float((save or is_due) and self._membership.cluster.is_main),
            float(failed),
            float(held),
            (now - self._last_time) / taken,
            stall,
            metrics,
            -metrics if metrics else -math.inf,
        )
        if step > self._last_step:
            affordable = int(_SECONDS_APART / max(seconds_a_step, 1e-9))
            self._steps_apart = max(1, min(2 * self._steps_apart, affordable, _MOST_STEPS_APART))
        self.next_step = step + self._steps_apart
        self._last_step, self._last_time = step, now
        return Decision(
            stop=stop_age >= 0,
            stop_age=stop_age,
            save=to_save > 0,
            failed=any_failed > 0,
            held=any_held > 0,
            metrics_differ=highest > 0 and highest != -minus_lowest,
            stall=slowest_stall,
        )

    def saved(self) -> None:
        """Restart the clock of checkpoints, after any save."""
        self._last_save = time.monotonic()

    def _largest(self, *numbers: float) -> list[float]:
        """Return the maximum of each number over all ranks."""
        if self._membership.store is None:
            return list(numbers)
        self._vector.copy_(torch.tensor(numbers, dtype=torch.float64))
        dist.all_reduce(self._vector, op=dist.ReduceOp.MAX)
        return self._vector.tolist()


class StopQuestion:
    """Answer, alike on all ranks, whether the job was told to stop, for a loop that asks in each iteration.

    All ranks must ask equally often.
    """

    def __init__(self, membership: Membership, stop_signal: StopSignal) -> None:
        self._membership = membership
        self._stop_signal = stop_signal
        self._agreement: Agreement | None = None
        self._asked = 0
        self.answer = False
        """The last answer; it stays True from then on."""

    def __call__(self) -> bool:
        """Return the answer; ask the other ranks if due, a few times a second at most."""
        if self._agreement is None:
            self._agreement = Agreement(self._membership, self._stop_signal)
        self._asked += 1
        if not self.answer and self._asked >= self._agreement.next_step:
            self.answer = self._agreement.decide(self._asked).stop
        return self.answer
