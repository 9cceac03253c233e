"""When to save and when to stop: the one place that decides, alike on all ranks, what happens between two batches.

It knows the step, the policy, rank 0's clock, the kind of the pause and the stop signal. It saves nothing:
`TrainingRun` asks it once in each pause, and does what it decides. After most batches it only compares two integers.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import replace
from enum import Enum, auto
from statistics import median

from smddp.checkpoint import SaveReport
from smddp.distributed import Agreement, Decision, Membership
from smddp.process.preemption import stop_signal
from smddp.training.checkpoint_policy import CheckpointPolicy

logger = logging.getLogger(__name__)

_LONG_EVALUATION_SECONDS = 30.0
"""An evaluation that may take longer begins with a checkpoint: a stop may come in it, and has only 90 s."""

_MEASUREMENTS = 5
_NEWS = 2.0  # the factor by which the interval must change to be logged again


class Pause(Enum):
    """The place between two batches at which all ranks pause, the same on each."""

    START = auto()
    """A loop begins."""
    STEP = auto()
    """The loop is done with a batch, or with a step outside of ``batches``."""
    COLLECTIVE = auto()
    """The ranks have added or gathered something outside of a batch, as in an evaluation."""
    EVALUATION = auto()
    """The batches of an evaluation begin."""
    END = auto()
    """An epoch or a loop over steps ends."""

    @property
    def may_evaluate(self) -> bool:
        """Whether the model may hold other weights than the last step left, such as their average."""
        return self in (Pause.COLLECTIVE, Pause.EVALUATION)


class SaveSchedule:
    """The decisions of one training run: continue, save, or save and stop; all ranks call it at the same points.

    A save is due at the end of an epoch or loop, each ``every`` steps, by rank 0's clock, and before a long evaluation.
    A stop is due once a rank was told to stop.
    """

    def __init__(self, membership: Membership, policy: CheckpointPolicy) -> None:
        self._agreement = Agreement(membership.ranks, stop_signal, save_seconds=policy.seconds)
        self._every = policy.every if isinstance(policy.every, int) else None
        self._periods = 0  # of ``every`` steps, at the last step that was asked about
        self._auto: AutoInterval | None = None
        if policy.every == "auto" and membership.cluster.is_main:  # only rank 0's clock counts
            self._auto = AutoInterval(policy.seconds_between_failures(membership.cluster.node_count))
        self._measured: SaveReport | None = None
        self._evaluation_seconds: float | None = None  # of the last evaluation

    def start(self, step: int, *, saved: int) -> None:
        """Start the clocks at this step; ``saved`` is the step of the loaded checkpoint, or 0."""
        self._agreement.start(step)
        self._periods = self._periods_at(saved)

    def is_due(self, pause: Pause, step: int) -> bool:
        """Return whether to call ``decide`` in this pause, the same on all ranks."""
        if pause is not Pause.STEP or step >= self._agreement.next_step:
            return True
        return self._every is not None and step // self._every > self._periods

    def decide(
        self,
        pause: Pause,
        step: int,
        *,
        failed: bool,
        held: bool,
        report: SaveReport | None,
        metrics: float,
        evaluation_batches: int = 0,
    ) -> Decision:
        """Ask all ranks, and return what happens now; collective.

        ``failed``, ``held`` and ``metrics`` are this rank's part of the `Decision`, ``report`` its last durable save.
        """
        is_long = pause is Pause.EVALUATION and self._expected_seconds(evaluation_batches) > _LONG_EVALUATION_SECONDS
        stall = 0.0 if report is None else report.stall_seconds
        decision = self._agreement.decide(step, failed=failed, held=held, stall=stall, save=is_long, metrics=metrics)
        if self._auto is not None and report is not None and report is not self._measured:
            self._measured = report
            self._agreement.save_seconds = self._auto.after(stall=decision.stall, durable=report.durable_seconds)
        before, self._periods = self._periods, self._periods_at(step)  # a batch may have several steps
        return replace(decision, save=decision.save or pause is Pause.END or self._periods > before)

    def any_failed(self, step: int, *, failed: bool) -> bool:
        """Return whether the save before a stop failed on any rank; collective."""
        return self._agreement.decide(step, failed=failed).failed

    def saved(self) -> None:
        """Restart the clock of checkpoints, after any save."""
        self._agreement.saved()

    def evaluated(self, seconds: float) -> None:
        """Record how long an evaluation took: the next one is expected to take as long."""
        self._evaluation_seconds = seconds

    def _expected_seconds(self, batches: int) -> float:
        """Return how long an evaluation may take. The first one: as long as training on as many batches."""
        if self._evaluation_seconds is None:
            return batches * self._agreement.seconds_a_step
        return self._evaluation_seconds

    def _periods_at(self, step: int) -> int:
        return 0 if self._every is None else step // self._every


def best_interval(cost: float, between_failures: float) -> float:
    """Return the interval between two saves, in seconds, that minimizes stalls plus lost work.

    To first order this is Young's sqrt(2 * cost * between_failures); the two further terms are Daly's. ``cost`` is the
    stall of one save in seconds, ``between_failures`` the job's mean time between failures.

    Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; J. T.
    Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
    Systems 22(3), 2006, equation 37.

    Examples:
        >>> round(best_interval(5 * 60, 24 * 3600) / 60)  # the figure in Daly's paper, in minutes
        117
    """
    if cost >= 2 * between_failures:
        return between_failures
    ratio = cost / (2 * between_failures)
    return math.sqrt(2 * cost * between_failures) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


class AutoInterval:
    """The interval for ``every="auto"``, updated after each save: it minimizes stalls plus the work lost to failures.

    The cost of each save is measured. ``between_failures`` is the job's mean time between failures in seconds, the
    user's own or from the literature.
    """

    def __init__(self, between_failures: float) -> None:
        self._between_failures = between_failures
        self._stalls: deque[float] = deque(maxlen=_MEASUREMENTS)
        self._told: float | None = None

    def after(self, *, stall: float, durable: float) -> float:
        """Return the new interval in seconds, after a save with this stall on the slowest rank.

        The median of the last five stalls counts, so one save on a busy machine changes nothing. A save must be durable
        before the next one begins, so the interval is never shorter than ``durable``, the seconds until this save was
        durable.
        """
        self._stalls.append(stall)
        cost = median(self._stalls)
        interval = max(best_interval(cost, self._between_failures), durable)
        if self._told is None or not 1 / _NEWS < interval / self._told < _NEWS:
            logger.info(
                "a checkpoint every %.3g s: one keeps training waiting for %.2g s and is durable after %.2g s, "
                "and a failure is expected every %.3g h",
                interval,
                cost,
                durable,
                self._between_failures / 3600,
            )
            self._told = interval
        return interval
