"""End orphans of ranks: processes that outlive the program that started them.

A daemon or a double fork keeps GPU memory, or waits in a collective, long after the run. The process that starts the
ranks adopts these orphans, in any session or process group, and ends them after the ranks.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from smddp.display_text import shown_names
from smddp.process.process_tree import Descendants, adopt_orphans, command_line

PATIENCE_SECONDS = 0.5
"""Seconds for orphans to end by themselves, as multiprocessing's resource tracker does, before they are reported."""

LEFTOVER_GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL. Short, because the ranks, which save checkpoints, have already ended."""

_KILL_SECONDS = 5.0
"""Seconds to wait for killed processes, at most: a process that hangs in the kernel never ends."""

_LOOK_SECONDS = 0.05
_RANKS_LOOK_SECONDS = 1.0


class Leftovers:
    """The orphans of this process's programs. Create it before the first program starts.

    Processes that are below this process by then do not belong to the run, and are left alone.
    """

    def __init__(self) -> None:
        adopt_orphans()
        self._others = frozenset(Descendants(os.getpid()).parents)
        self._next_look = 0.0
        self._has_seen_ranks = False

    def reap(self, own: Collection[int]) -> None:
        """Reap ended orphans; `own` must contain every child that other code waits for."""
        with suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if (
                    ended.si_pid in own or ended.si_pid in self._others
                ):  # another thread reaps it first: continue at the next call
                    return
                os.waitpid(ended.si_pid, os.WNOHANG)

    def end(self, tell: Callable[[str], object]) -> None:
        """End all orphans of the programs by SIGTERM, then SIGKILL; `tell` receives a line with their names."""
        self._end(self._find_all, tell)

    def end_those_of_ranks(self, own: Collection[int], tell: Callable[[str], object]) -> None:
        """End the ranks' orphans once all ranks have ended, while their launcher still runs; call it repeatedly.

        mpirun waits until its ranks' output is closed, and so for their orphans. `own` are the children that this
        process started, such as the launcher; `tell` as for `end`.
        """
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _RANKS_LOOK_SECONDS
            self._end(lambda: self._find_those_of_ranks(own), tell)

    def _end(self, find: Callable[[], set[int]], tell: Callable[[str], object]) -> None:
        if _await_none(find, PATIENCE_SECONDS):
            return
        if not (left := sorted(find())):  # the last orphan has just ended
            return
        tell(f"{_describe(left)}. Ending what is left: SIGTERM now, SIGKILL in {LEFTOVER_GRACE:g} s.")
        _signal(left, signal.SIGTERM)
        if _await_none(find, LEFTOVER_GRACE):
            return
        deadline = time.monotonic() + _KILL_SECONDS
        while (left := sorted(find())) and time.monotonic() < deadline:  # a killed process may just have forked
            _signal(left, signal.SIGKILL)
            time.sleep(_LOOK_SECONDS)

    def _find_all(self) -> set[int]:
        found = Descendants(os.getpid())
        return set(found.parents) - found.at_or_below(self._others)

    def _find_those_of_ranks(self, own: Collection[int]) -> set[int]:
        found = Descendants(os.getpid())
        self._has_seen_ranks = self._has_seen_ranks or bool(found.marked())
        return found.left_by_ranks(own) - found.at_or_below(self._others) if self._has_seen_ranks else set()


def _await_none(find: Callable[[], set[int]], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    # One scan may miss a child of a process that ends meanwhile; the second scan finds it, now below this process.
    while find() or find():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _describe(processes: list[int]) -> str:
    named = shown_names(f"{process} ({command_line(process)})" for process in processes)
    return f"Left behind by the programs that ran here: {named}"


def _signal(processes: list[int], signum: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):  # it has just ended, or runs as another user
            os.kill(process, signum)
