"""The interval between saves for ``every="auto"``: it minimizes the cost of saves plus the work lost to failures.

A save stalls training a little; a failure loses the work since the last save. Young derived the interval that minimizes
the sum, and Daly refined it for saves that take long. The cost of each save is measured; the failure rate is a number
from the literature, or the user's own.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from statistics import median

logger = logging.getLogger(__name__)

_MEASUREMENTS = 5
_NEWS = 2.0  # the factor by which the interval must change to be logged again


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
    """The interval of one run, updated after each save. ``between_failures`` is the job's mean time in seconds."""

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
