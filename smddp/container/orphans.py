"""Processes that outlive their parents: adopted, so that their end is noticed, as a first process notices it."""

from __future__ import annotations

import os


def adopt_orphans() -> None:
    """Become the parent of whatever below this process outlives its own; the first process is that already."""
    if os.getpid() == 1:
        return
    import ctypes  # a tenth of a small program's start

    set_child_subreaper = 36  # linux/prctl.h
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)
