"""How long a rank waits for the other ranks, at the start and in each collective: SMDDP_TIMEOUT."""

from __future__ import annotations

from collections.abc import Mapping

from smddp.errors import DistributedError

TIMEOUT_VARIABLE = "SMDDP_TIMEOUT"
"""Names the seconds, for ``smddp.join`` without an argument; ``smddp run --timeout`` sets it."""

DEFAULT_TIMEOUT = 1800.0
"""Seconds: torch's own for gloo, long enough for a rank that reads a whole data set while the others wait."""

_LONGEST = 1e7


def check_timeout(seconds: float, source: str) -> float:
    """Return the seconds, if they can be waited for.

    Args:
        seconds: How long.
        source: Who says so, for the message.

    Raises:
        DistributedError: They can't.
    """
    if not 0 < seconds <= _LONGEST:  # NaN neither
        raise DistributedError(f"{source}: a timeout is more than 0 and at most {_LONGEST:.0f} seconds, such as 600.")
    return seconds


def read_timeout(environ: Mapping[str, str]) -> float:
    """Return what the environment says, else the default.

    Raises:
        DistributedError: It is no such number.
    """
    given = environ.get(TIMEOUT_VARIABLE)
    if not given:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    return check_timeout(seconds, f"{TIMEOUT_VARIABLE}={given!r}")
