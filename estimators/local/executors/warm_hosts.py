"""Warm parents of hosts: a Python that has imported torch and smddp once, from which the hosts of jobs are forked.

The first job of a kind starts cold, while its warm parent imports; later jobs start in a fraction of a second. A host
gets a copy of the imports, and nothing of another job: its supervisor, a fork of the warm parent, puts it into separate
namespaces, and cannot change the parent. Jobs with different variables for libraries have separate parents.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from smddp.process.warm_parent import VARIABLE, ForkedProcess, WarmParent, is_read_at_load
from smddp.script_syntax.warm_start import COMMON, OF_LAUNCHER

logger = logging.getLogger(__name__)

IDLE_SECONDS = 900.0
"""Seconds after which warm parents end if no job has started: each has about 0.5 GB of memory."""
_IMPORT_SECONDS = 120.0
"""Seconds after which imports that have not ended are given up."""
_MOST_PARENTS = 2
_MODULES = (*COMMON, *OF_LAUNCHER, "boto3.s3.transfer", "smddp.container.__main__")
"""What most scripts, `train` and torchrun import."""
_COMMAND_BYTES = 16 << 10
_ENVIRON_BYTES = 96 << 10
"""Room in which the variables of hosts and ranks are shown; the kernel's limit for one string is 128 KiB."""

_Kind = frozenset[tuple[str, str]]


class WarmHosts:
    """Keeps warm parents until `close`. This process adopts orphans from the first one on."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        # Guards the fields below. Nothing waits under it: a parent imports in its own time, and has its own lock for a
        # fork.
        self._lock = threading.Lock()
        self._parents: dict[_Kind, WarmParent] = {}  # the one that was used last is the last
        self._timer: threading.Timer | None = None
        self._is_closed = False

    def start(
        self, command: Sequence[str], *, environ: Mapping[str, str], passed: Sequence[int], umask: int
    ) -> ForkedProcess | None:
        """Return a host's supervisor, whose program has these variables; None if it must be started."""
        if environ.get(VARIABLE) == "0":
            return None
        kind = frozenset((name, value) for name, value in environ.items() if is_read_at_load(name))
        try:
            parent = self._parent(kind)
            if parent is None or not parent.is_ready:
                return None
            forked = self._fork(parent, kind, command, passed=passed, umask=umask)
            if not isinstance(forked, ForkedProcess):
                parent.give_up(forked)
                self._parent(kind)  # a new one, for the next job
                return None
        except OSError as error:
            logger.info("hosts start cold: %s", error)
            return None
        return forked

    def _fork(
        self, parent: WarmParent, kind: _Kind, command: Sequence[str], *, passed: Sequence[int], umask: int
    ) -> ForkedProcess | str:
        with ExitStack() as theirs, ExitStack() as ours:
            ends = {}
            files = []
            for number in range(3):
                reading, writing = os.pipe()
                ends[number], own = (reading, writing) if number == 0 else (writing, reading)
                theirs.callback(os.close, ends[number])
                files.append(ours.enter_context(os.fdopen(own, "wb" if number == 0 else "rb", 0)))
            forked = parent.fork(
                command,
                self._own_environ(kind),
                given={**ends, **{each: each for each in passed}},
                directory=Path("/"),
                new_session=True,
                umask=umask,
            )
            if not isinstance(forked, ForkedProcess):
                return forked
            ours.pop_all()
        forked.stdin, forked.stdout, forked.stderr = files
        return forked

    def close(self) -> None:
        """End all warm parents; the hosts live on."""
        with self._lock:
            self._is_closed = True
            if self._timer is not None:
                self._timer.cancel()
        self._end_oldest(keep=0)

    def _parent(self, kind: _Kind) -> WarmParent | None:
        """Return the parent of a kind, which may still import; None once closed."""
        with self._lock:
            if self._is_closed:
                return None
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(IDLE_SECONDS, self._end_oldest, kwargs={"keep": 0})
            self._timer.daemon = True
            self._timer.start()
            parent = self._parents.pop(kind, None)
            if parent is None or parent.is_closed:
                parent = self._begin(kind)
            self._parents[kind] = parent
        self._end_oldest(keep=_MOST_PARENTS)
        return parent

    def _begin(self, kind: _Kind) -> WarmParent:
        environ = self._own_environ(kind)
        parent = WarmParent.start(
            environ,
            command_bytes=_COMMAND_BYTES,
            environ_bytes=_ENVIRON_BYTES,
            is_tied=False,
            said="hosts start",
        )
        parent.prepare(Path("/"), modules=_MODULES, extras=[], environ=environ)
        threading.Thread(target=parent.settle, args=(_IMPORT_SECONDS,), daemon=True).start()
        return parent

    def _end_oldest(self, *, keep: int) -> None:
        with self._lock:
            oldest = list(self._parents)[: len(self._parents) - keep]
            ended = [self._parents.pop(kind) for kind in oldest]
        for parent in ended:
            if not parent.is_closed:
                parent.close()

    def _own_environ(self, kind: _Kind) -> dict[str, str]:
        shared = {name: value for name, value in self._environ.items() if not is_read_at_load(name)}
        return {**shared, **dict(kind)}
