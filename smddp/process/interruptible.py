"""Wait in a main thread that handles signals.

Python runs a signal handler between two bytecode instructions. A signal between the last instruction and a blocking
system call does not interrupt the call: the handler would run only after the call returns. So an unbounded wait is
split into short ones.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress

SIGNAL_SECONDS = 0.25
"""Seconds that a signal may wait for its handler, at most."""


def wait_for(process: subprocess.Popen[bytes]) -> int:
    """Wait until a process has ended, while signal handlers run, and return its ``Popen.returncode``."""
    while process.returncode is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(SIGNAL_SECONDS)
    return process.returncode
