"""The timeout of a rank's waits for other ranks, at the start and in each collective: SMDDP_TIMEOUT."""

from __future__ import annotations

from collections.abc import Mapping

from smddp.errors import DistributedError

TIMEOUT_VARIABLE = "SMDDP_TIMEOUT"
"""The variable with the seconds, for ``smddp.join`` without an argument; ``smddp run --timeout`` sets it."""

DEFAULT_TIMEOUT = 1800.0
"""Seconds: torch's own default for gloo, long enough while one rank reads a whole data set."""

_LONGEST = 1e7


def check_timeout(seconds: float, source: str) -> float:
    """Return the seconds if they are a valid timeout; otherwise raise DistributedError, which names ``source``."""
    if not 0 < seconds <= _LONGEST:  # also refuses NaN
        raise DistributedError(f"{source}: a timeout is more than 0 and at most {_LONGEST:.0f} seconds, such as 600.")
    return seconds


def read_timeout(environ: Mapping[str, str]) -> float:
    """Return SMDDP_TIMEOUT in seconds, or the default if unset; raise DistributedError if it is not a valid timeout."""
    given = environ.get(TIMEOUT_VARIABLE)
    if not given:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    return check_timeout(seconds, f"{TIMEOUT_VARIABLE}={given!r}")
