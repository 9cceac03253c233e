"""One child process of the container: started, signalled, watched and reaped.

As the first process of a container this one also inherits, and reaps, whatever the job leaves behind. Output passes
through unchanged; the end of the standard error is kept, for the failure's reason.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from smddp.process.output_lines import STDERR, write_all
from smddp.process.preemption import USER_SIGNALS
from smddp.process.process_tree import Descendants, adopt_orphans, send_to_those_that_catch

logger = logging.getLogger(__name__)

TAIL_BYTES = 64 * 1024
"""How much of the standard error is kept."""

DRAIN_SECONDS = 1.0
"""How long the rest of the standard error is waited for: a daemon of the job may hold it open for ever."""

GROUP_GRACE = 120.0
"""Seconds that the programs of a shell script have to end after a stop: what SageMaker gives a container."""

_LOOK_SECONDS = 0.05

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How the child ended."""

    code: int
    """As a shell sees it: 128 + n for a process that signal n killed."""
    tail: str
    """The end of its standard error."""
    stop: int | None
    """The signal that asked for a stop while it ran."""


class StoppedBeforeStart(BaseException):
    """A stop was asked for before the job's processes were started.

    Like KeyboardInterrupt it can be raised anywhere, even in the midst of a log line: no ``except Exception`` may
    swallow it.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"{signal.Signals(signum).name} came before the job's processes were started.")
        self.code = 128 + signum


def raise_on_stop() -> None:
    """Answer SIGTERM and SIGINT with ``StoppedBeforeStart`` from now on: nothing runs yet."""

    def stop(signum: int, _frame: FrameType | None) -> None:
        raise StoppedBeforeStart(signum)

    for signum in STOP_SIGNALS:
        signal.signal(signum, stop)


class Tail:
    """Copies a pipe to this process's standard error and keeps its end."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        while chunk := os.read(self._pipe, 65536):
            write_all(STDERR, chunk)
            self._kept += chunk
            del self._kept[:-TAIL_BYTES]

    def text(self) -> str:
        """Return what was kept, once the pipe is at its end."""
        self._thread.join(DRAIN_SECONDS)
        return bytes(self._kept).decode(errors="replace")


def run(command: Sequence[str], *, environ: Mapping[str, str], directory: Path, group: bool) -> Result:
    """Run a program and wait for it, forwarding SIGTERM and SIGINT to it at once, from now on.

    Call it from the main thread of a process that has no other children: it reaps all there are.

    Args:
        command: The program and its arguments.
        environ: Its whole environment.
        directory: Its working directory.
        group: Give it a process group and signal all of that: for programs that do not tell their own children.
    """
    child: subprocess.Popen[bytes] | None = None
    stops: list[int] = []

    def forward(signum: int, _frame: FrameType | None) -> None:
        stops.append(signum)
        logger.info("%s: telling %s.", signal.Signals(signum).name, Path(command[0]).name)
        if child is not None:
            send(child.pid, signum)

    def send(pid: int, signum: int) -> None:
        with suppress(ProcessLookupError):
            if group:
                os.killpg(pid, signum)
            else:
                os.kill(pid, signum)

    def pass_on(signum: int, _frame: FrameType | None) -> None:
        if child is not None:
            send_to_those_that_catch({child.pid, *(Descendants(child.pid).parents if group else ())}, signum)

    if group:
        adopt_orphans()
    for signum in STOP_SIGNALS:
        signal.signal(signum, forward)
    for signum in USER_SIGNALS:
        signal.signal(signum, pass_on)
    started = subprocess.Popen(
        command, env=dict(environ), cwd=directory, stderr=subprocess.PIPE, start_new_session=group
    )
    assert started.stderr is not None
    child = started
    for early in stops:  # those that came while it was being started
        send(child.pid, early)
    tail = Tail(started.stderr.fileno())
    status = _reap(started.pid)
    started.returncode = status  # it is reaped: Popen need not look for it
    if group and stops:
        _await_group(started.pid)
    return Result(code=status if status >= 0 else 128 - status, tail=tail.text(), stop=stops[0] if stops else None)


def _reap(pid: int) -> int:
    """Wait for one child, reaping orphans as well; its exit code, negative for a signal."""
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)
        if ended == 0:  # a blocking call could miss a signal that comes just before it
            time.sleep(_LOOK_SECONDS)


def _await_group(group: int) -> None:
    """Wait until a process group is empty: the shell is gone, but what it ran may still be saving."""
    deadline = time.monotonic() + GROUP_GRACE
    with suppress(ChildProcessError):  # nobody is left
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG) == (0, 0):
                time.sleep(0.05)
