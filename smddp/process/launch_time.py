"""When the launcher of a job's ranks began. Time before that counts as waiting, not as start."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from smddp.process.process_tree import age

_LAUNCHED_VARIABLE = "SMDDP_LAUNCHED"
_OF_AGENTS = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK")
"""Variables of ranks whose parent is the launcher itself."""


def launch_variables() -> dict[str, str]:
    """Return the variable that tells the ranks when this process, their launcher, began."""
    return {_LAUNCHED_VARIABLE: f"{_began(os.getpid()):.3f}"}


def launched(environ: Mapping[str, str]) -> float:
    """Return when the launcher of this rank began, in seconds since 1970; without a launcher, when this process began.

    A rank that an agent starts again has the launcher of the first one.
    """
    try:
        return float(environ[_LAUNCHED_VARIABLE])
    except (KeyError, ValueError):
        return _began(os.getppid() if any(name in environ for name in _OF_AGENTS) else os.getpid())


def _began(process: int) -> float:
    return time.time() - age(process)
