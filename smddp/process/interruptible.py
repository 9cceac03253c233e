"""Waiting in a main thread that answers signals.

Python runs a signal's handler between two of its instructions. A signal that comes after the last one before a system
call, and before the call itself, interrupts nothing: its handler would run only once the call returns by itself. So a
wait without an end is many short ones.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress

SIGNAL_SECONDS = 0.25
"""How long a signal may wait for its handler."""


def wait_for(process: subprocess.Popen[bytes]) -> int:
    """Wait until a process has ended; signal handlers run while it has not.

    Returns:
        Its return code, as ``Popen.returncode`` has it.
    """
    while process.returncode is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(SIGNAL_SECONDS)
    return process.returncode
