"""How ranks agree, at a step's boundary, to stop, to save or to give up: by one tiny reduction, a few times a second.

A rank that alone saw SIGTERM, or whose checkpoint failed, must not leave the others waiting in their next collective.
So what each rank knows travels in a vector of eight numbers that all ranks reduce at the same step, and the next such
step follows from that vector too: it is the same on all ranks without asking again. Between these steps a rank compares
two integers and no more.
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
_MOST_STEPS_APART = 50  # so that a stop is heard within a minute even if steps become a thousand times slower


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What all ranks do now."""

    stop: bool
    """At least one rank was asked to stop."""

    stop_age: float
    """Seconds since the first rank was."""

    save: bool
    """Rank 0's clock says that a checkpoint is due."""

    failed: bool
    """At least one rank knows of a failure that must end the run."""

    held: bool
    """At least one rank holds exchanged weights, and the trained ones are in no checkpoint."""

    metrics_differ: bool
    """Two ranks reported different ``metrics``."""

    stall: float
    """The largest ``stall`` of all ranks: the others waited for that rank."""


class Agreement:
    """The agreements of one training run; every rank must call ``decide`` at the same points."""

    def __init__(self, membership: Membership, stop_signal: StopSignal, *, save_seconds: float | None = None) -> None:
        self.next_step = 1
        """The step at which to decide next; until then there is nothing to ask."""
        self.save_seconds = save_seconds
        """Seconds from one checkpoint to the next, or None; only rank 0's counts, and it may change."""
        self._membership = membership
        self._stop_signal = stop_signal
        stop_signal.heeded = True
        self._vector = torch.zeros(8, dtype=torch.float64, device=membership.control_device)
        self._steps_apart = 1
        self._last_step = 0
        self._last_time = self._last_save = time.monotonic()

    def start(self, step: int) -> None:
        """Count from this step on, after a resume."""
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
        """Ask all ranks, and sets ``next_step``.

        The first steps are asked one by one, then twice as far apart each time, up to a quarter of a second or 50
        steps.

        Args:
            step: Steps taken, the same on all ranks.
            failed: Whether this rank knows of a failure that must end the run.
            held: Whether this rank holds exchanged weights, and the trained ones are in no checkpoint.
            stall: Seconds that this rank's last save kept its training waiting.
            save: Whether a checkpoint is due whatever the clock says; only rank 0's counts.
            metrics: A positive number that stands for what this rank measured; 0 if it measured nothing.
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
        """Tell that a checkpoint was saved, whatever the reason: the clock starts again."""
        self._last_save = time.monotonic()

    def _largest(self, *numbers: float) -> list[float]:
        """Return the largest of each number over all ranks."""
        if self._membership.store is None:
            return list(numbers)
        self._vector.copy_(torch.tensor(numbers, dtype=torch.float64))
        dist.all_reduce(self._vector, op=dist.ReduceOp.MAX)
        return self._vector.tolist()


class StopQuestion:
    """Answers, on all ranks alike, whether the job was told to stop, for a loop that asks at each of its turns.

    Args:
        membership: The ranks; all must ask equally often.
        stop_signal: What this process was told.
    """

    def __init__(self, membership: Membership, stop_signal: StopSignal) -> None:
        self._membership = membership
        self._stop_signal = stop_signal
        self._agreement: Agreement | None = None
        self._asked = 0
        self.answer = False
        """The last answer: once True it stays so."""

    def __call__(self) -> bool:
        """Ask the other ranks if that is due, a few times a second at most."""
        if self._agreement is None:
            self._agreement = Agreement(self._membership, self._stop_signal)
        self._asked += 1
        if not self.answer and self._asked >= self._agreement.next_step:
            self.answer = self._agreement.decide(self._asked).stop
        return self.answer
