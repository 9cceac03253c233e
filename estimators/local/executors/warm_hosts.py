"""Warm parents of hosts: a Python that has imported torch and smddp once, from which the hosts of all jobs are forked.

The first job of a kind waits for its imports, which it needs anyway. Later jobs start in a fraction of a second. A host
gets a copy of what was imported, and nothing of another job: its supervisor, a fork of the warm parent, puts it into
namespaces of its own, and neither writes back. Variables that libraries read when they are loaded distinguish parents.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from smddp.process.process_tree import adopt_orphans
from smddp.process.warm_parent import VARIABLE, ForkedProcess, WarmParent, is_read_at_load
from smddp.script_syntax.warm_start import COMMON

logger = logging.getLogger(__name__)

IDLE_SECONDS = 900.0
"""Seconds after which warm parents end if no job has started: each has about 0.5 GB of memory."""
_IMPORT_SECONDS = 120.0
"""Seconds that a host waits for the imports at most; then it starts without a warm parent."""
_MOST_PARENTS = 2
_MODULES = (
    *(*COMMON, "torch.distributed.elastic.agent.server.api", "boto3.s3.transfer"),
    *("smddp.container.__main__", "smddp.launch.torchrun", "smddp.launch.agent", "smddp.launch.node_connections"),
)
"""What most scripts import, and what `train` and torchrun do."""
_COMMAND_BYTES = 16 << 10
_ENVIRON_BYTES = 96 << 10
"""Room in which the variables of hosts and ranks are shown; the kernel's limit for one string is 128 KiB."""

_Kind = frozenset[tuple[str, str]]


class WarmHosts:
    """Keeps warm parents until `close`. This process adopts orphans from now on."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        adopt_orphans()
        self._environ = dict(environ)
        # Guards the fields below. It is held while a parent is asked for a fork, which takes milliseconds, and never
        # while a parent imports.
        self._lock = threading.Lock()
        self._parents: dict[_Kind, WarmParent] = {}
        self._used: dict[_Kind, float] = {}
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
        except OSError as error:
            logger.info("hosts start cold: %s", error)
            return None
        if parent is None:
            return None
        parent.settle(_IMPORT_SECONDS)
        with ExitStack() as theirs, ExitStack() as ours, self._lock:
            if parent.is_closed:
                return None
            pipes = [os.pipe() for _ in range(3)]
            ends = {number: pipe[number > 0] for number, pipe in enumerate(pipes)}
            for end in ends.values():
                theirs.callback(os.close, end)
            stdin, stdout, stderr = (
                ours.enter_context(os.fdopen(pipe[number == 0], "wb" if number == 0 else "rb", 0))
                for number, pipe in enumerate(pipes)
            )
            forked = parent.fork(
                command,
                self._own_environ(kind),
                given={**ends, **{each: each for each in passed}},
                directory=Path("/"),
                new_session=True,
                umask=umask,
            )
            if not isinstance(forked, ForkedProcess):
                parent.give_up(forked)
                return None
            ours.pop_all()
        forked.stdin, forked.stdout, forked.stderr = stdin, stdout, stderr
        return forked

    def close(self) -> None:
        """End all warm parents; the hosts live on."""
        with self._lock:
            self._is_closed = True
            if self._timer is not None:
                self._timer.cancel()
            self._end_those_but(frozenset())

    def _parent(self, kind: _Kind) -> WarmParent | None:
        with self._lock:
            if self._is_closed:
                return None
            self._used[kind] = time.monotonic()
            alive = {each for each, parent in self._parents.items() if not parent.is_closed}
            newest = sorted(alive | {kind}, key=lambda each: self._used[each])[-_MOST_PARENTS:]
            self._end_those_but(alive & set(newest))
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(IDLE_SECONDS, self._end_idle)
            self._timer.daemon = True
            self._timer.start()
            if kind not in self._parents:
                environ = self._own_environ(kind)
                parent = WarmParent.start(
                    environ, command_bytes=_COMMAND_BYTES, environ_bytes=_ENVIRON_BYTES, is_tied=False
                )
                parent.prepare(Path("/"), modules=_MODULES, extras=[], environ=environ)
                self._parents[kind] = parent
            return self._parents[kind]

    def _end_idle(self) -> None:
        with self._lock:
            self._end_those_but(frozenset())

    def _end_those_but(self, kept: Collection[_Kind]) -> None:
        for kind in self._parents.keys() - set(kept):
            parent = self._parents.pop(kind)
            if not parent.is_closed:
                parent.close()

    def _own_environ(self, kind: _Kind) -> dict[str, str]:
        shared = {name: value for name, value in self._environ.items() if not is_read_at_load(name)}
        return {**shared, **dict(kind)}
