"""The interval between saves of ``every="auto"``: where the cost of saves and the work lost to failures are least.

A save stalls training a little; a failure loses what came after the last save. Young found the interval at which the
two losses together are smallest, Daly made it exact for saves that are not short. The cost is measured with every save;
how often machines fail is a number from the literature, or the user's own.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from statistics import median

logger = logging.getLogger(__name__)

_MEASUREMENTS = 5
_NEWS = 2.0  # the factor by which the interval must change to be told again


def best_interval(cost: float, between_failures: float) -> float:
    """Return the seconds between two saves at which stalls and lost work together cost least.

    To first order this is Young's sqrt(2 * cost * between_failures); the two further terms are Daly's.

    Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974;
    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
    Computer Systems 22(3), 2006, equation 37.

    Args:
        cost: Seconds that a save keeps training waiting.
        between_failures: Mean seconds from one failure of the job to the next.

    Examples:
        >>> round(best_interval(5 * 60, 24 * 3600) / 60)  # the figure in Daly's paper, in minutes
        117
    """
    if cost >= 2 * between_failures:
        return between_failures
    ratio = cost / (2 * between_failures)
    return math.sqrt(2 * cost * between_failures) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


class AutoInterval:
    """The interval of one run, followed as the saves are measured.

    Args:
        between_failures: Mean seconds from one failure of the job to the next.
    """

    def __init__(self, between_failures: float) -> None:
        self._between_failures = between_failures
        self._stalls: deque[float] = deque(maxlen=_MEASUREMENTS)
        self._told: float | None = None

    def after(self, *, stall: float, durable: float) -> float:
        """Return the interval in seconds, now that one more save was measured.

        The last five saves count, by their median: one that met a busy machine changes nothing. A save must be durable
        before the next one begins, so the interval is never shorter than that takes.

        Args:
            stall: Seconds that the save kept training waiting, on the slowest rank.
            durable: Seconds until it was durable.
        """
        self._stalls.append(stall)
        cost = median(self._stalls)
        interval = max(best_interval(cost, self._between_failures), durable)
        if self._told is None or not 1 / _NEWS < interval / self._told < _NEWS:
            logger.info(
                "a checkpoint every %.3g s: one keeps training waiting for %.2g s and is durable after %.2g s, "
                "and a failure is expected every %.3g h",
                *(interval, cost, durable, self._between_failures / 3600),
            )
            self._told = interval
        return interval
