"""The start of a job's ranks: when their launcher began, and a line every ten seconds while they start."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from smddp.process.heartbeat import Heartbeat
from smddp.process.process_tree import Descendants, age, catches, ignores, state

_LOOK_SECONDS = 1.0
_MOST_SECONDS = 60.0
"""Seconds for which the start is logged at most; a script may use smddp without ``smddp.run``."""
_LAUNCHED_VARIABLE = "SMDDP_LAUNCHED"
_OF_AGENTS = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK")
"""Variables of ranks whose parent is the launcher itself."""


class RankStart:
    """The start of the ranks below this process: a context around their run, in which `look` is called repeatedly.

    It logs nothing if the `script` does not name smddp: the start of such a script can't be detected. Several `nodes`
    meet before any of them starts a rank, and their agents log whom they wait for.
    """

    def __init__(self, script: Path, *, nodes: int = 1, is_first: bool = True) -> None:
        """Take the number of nodes, and whether the first one is here: it alone logs, since all may share a log."""
        self._nodes = nodes
        self._is_told = is_first and script.is_file() and b"smddp" in script.read_bytes()
        self._heartbeat = Heartbeat(self._what, until=self._is_over, most=_MOST_SECONDS)
        self._until = time.monotonic() + _MOST_SECONDS
        self._next_look = 0.0
        self._program: int | None = None
        self._lock = threading.Lock()
        # Guards the two sets: the heartbeat asks `_is_over` in its thread, right before each line.
        self._seen: set[int] = set()
        self._begun: set[int] = set()

    def look(self, program: int | None = None) -> None:
        """Stop the heartbeat once each rank catches SIGTERM, as it does during ``smddp.run``, or one is at its end.

        Without a launcher, `program` is the process of the only rank.
        """
        now = time.monotonic()
        self._program = program
        if self._is_told and self._next_look <= now < self._until:
            self._next_look = now + _LOOK_SECONDS
            if self._is_over():
                self._until = now
                self._heartbeat.stop()

    def _what(self) -> str:
        with self._lock:
            has_ranks = bool(self._seen)
        return "" if self._nodes > 1 and not has_ranks else "the ranks are starting"

    def _is_over(self) -> bool:
        """Return whether all ranks have begun, or one is at its end: its last line is in the log.

        ``smddp.run`` lets a rank ignore SIGTERM from its end on, however soon after its begin that is.
        """
        with self._lock:
            processes = Descendants(os.getpid())
            ranks = set(processes.ranks())
            if not ranks and self._program is not None:
                ranks = processes.script(self._program)
            begun = {rank for rank in ranks if catches(rank, signal.SIGTERM)}
            has_end = self._begun - begun or any(
                state(rank) in ("", "Z") or ignores(rank, signal.SIGTERM) for rank in self._seen | ranks
            )
            self._seen |= ranks
            self._begun |= begun
            return bool(has_end) or (bool(ranks) and ranks <= begun)

    def __enter__(self) -> RankStart:
        if self._is_told:
            self._heartbeat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._heartbeat.stop()


def launch_variables() -> dict[str, str]:
    """Return the variable that tells the ranks when this process, their launcher, began."""
    return {_LAUNCHED_VARIABLE: f"{_began(os.getpid()):.3f}"}


def threads_of_rank(ranks_here: int) -> str:
    """Return the OMP_NUM_THREADS with which this many ranks share the cores of this machine.

    Set it before the launcher starts, unless the user did: the launcher may load the ranks' libraries, which read it.
    """
    return str(max(1, len(os.sched_getaffinity(0)) // ranks_here))


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
