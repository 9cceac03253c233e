"""What ranks leave behind: processes that outlive the program which started them, and are ended with the run.

A script that forks and leaves, a daemon, a double fork: such a process holds its GPU's memory and waits in a collective
long after the run, with nobody to signal it. The process that starts the ranks adopts these orphans, whatever session
or group they are in, and ends them when the ranks have ended.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from smddp.process.process_tree import Descendants, adopt_orphans, command_line

PATIENCE_SECONDS = 0.5
"""How long leftovers may take to end by themselves, as multiprocessing's resource tracker does, before they are told
of."""

LEFTOVER_GRACE = 10.0
"""Seconds between their SIGTERM and SIGKILL: the ranks, which save checkpoints, have ended before."""

_KILL_SECONDS = 5.0
"""How long a killed process is waited for: one that hangs in the kernel never ends."""

_LOOK_SECONDS = 0.05
_RANKS_LOOK_SECONDS = 1.0
_MOST_NAMED = 5


class Leftovers:
    """The processes that the programs of this process leave behind; make it before the first program starts.

    What is below this process already then is not the run's, and is left alone.
    """

    def __init__(self) -> None:
        adopt_orphans()
        self._others = frozenset(Descendants(os.getpid()).parents)
        self._next_look = 0.0
        self._has_seen_ranks = False

    def reap(self, own: Collection[int]) -> None:
        """Reap adopted children that have ended.

        Args:
            own: The children of this process that others wait for. A child is in it before this is called.
        """
        with suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in own or ended.si_pid in self._others:  # its own thread reaps it: look again later
                    return
                os.waitpid(ended.si_pid, os.WNOHANG)

    def end(self, tell: Callable[[str], object]) -> None:
        """End every process that is left, once the programs themselves have ended: SIGTERM, and after a grace SIGKILL.

        Args:
            tell: Called with one line that names the processes, if there are any.
        """
        self._end(self._find_all, tell)

    def end_those_of_ranks(self, own: Collection[int], tell: Callable[[str], object]) -> None:
        """End what ranks left behind if all of them have ended and their launcher has not; call it again and again.

        mpirun waits until nobody holds its ranks' output any more, and so for what they left behind.

        Args:
            own: The children of this process that it has started since, such as the launcher.
            tell: As for `end`.
        """
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _RANKS_LOOK_SECONDS
            self._end(lambda: self._find_those_of_ranks(own), tell)

    def _end(self, find: Callable[[], set[int]], tell: Callable[[str], object]) -> None:
        if _await_none(find, PATIENCE_SECONDS):
            return
        if not (left := sorted(find())):  # the last one has just ended
            return
        tell(f"{_describe(left)}. Ending what is left: SIGTERM now, SIGKILL in {LEFTOVER_GRACE:g} s.")
        _signal(left, signal.SIGTERM)
        if _await_none(find, LEFTOVER_GRACE):
            return
        deadline = time.monotonic() + _KILL_SECONDS
        while (left := sorted(find())) and time.monotonic() < deadline:  # what is killed may just have forked
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
    # One look may miss the child of a process that ends meanwhile: the next one finds it below this process.
    while find() or find():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _describe(processes: list[int]) -> str:
    named = ", ".join(f"{process} ({command_line(process)})" for process in processes[:_MOST_NAMED])
    more = f" and {len(processes) - _MOST_NAMED} more" if len(processes) > _MOST_NAMED else ""
    return f"Left behind by the programs that ran here: {named}{more}"


def _signal(processes: list[int], signum: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):  # it has just ended, or became another user's
            os.kill(process, signum)
