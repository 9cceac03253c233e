"""What a program inherits from its parent and can't work with: ignored or blocked signals, closed standard streams.

1. If SIGCHLD is ignored, the kernel reaps children, and their exit codes are lost: Python takes each for a success.
2. If a stop's signal is blocked, a stop has no effect, here and in the ranks.
3. If a standard stream is closed, the next opened file or pipe gets its number, and output is written into it.

An ignored SIGHUP (nohup) and an ignored SIGINT (a shell's background job) were meant, and stay.
"""

from __future__ import annotations

import os
import signal
import sys

from smddp.process.preemption import FORWARDED_SIGNALS, USER_SIGNALS

_UNBLOCKED = (*FORWARDED_SIGNALS, *USER_SIGNALS, signal.SIGCHLD)


def reset_inherited() -> None:
    """Reset what this process has inherited. Each program of ours calls it first, in its main thread."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _UNBLOCKED)
    open_closed_streams()


def open_closed_streams() -> None:
    """Open the null device as each standard stream that is closed, for this process and its children."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if not _is_open(number):
            # The lowest free number, and so this one: those below it are open.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            stream = os.fdopen(number, "w" if number else "r", encoding="utf-8", errors="replace", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
