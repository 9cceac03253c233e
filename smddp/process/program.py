"""A child program whose signals, output and exit code pass through the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from smddp.process.exit_codes import as_shell
from smddp.process.output_lines import STDOUT, OutputCopy
from smddp.process.preemption import FORWARDED_SIGNALS, USER_SIGNALS


def forward_signals(stop: Callable[[int], None], pass_on: Callable[[int], None]) -> Callable[[], None]:
    """Answer this process's signals by telling others, from now on; call it from the main thread.

    Args:
        stop: Called with SIGTERM and SIGINT.
        pass_on: Called with SIGUSR1 and SIGUSR2 (``sbatch --signal=USR1@120``), whose meaning is the ranks' to know.

    Returns:
        What puts the handlers back that were there before.
    """

    def answer(signum: int, _frame: FrameType | None) -> None:
        (stop if signum in FORWARDED_SIGNALS else pass_on)(signum)

    previous = {signum: signal.signal(signum, answer) for signum in (*FORWARDED_SIGNALS, *USER_SIGNALS)}

    def restore() -> None:
        for signum, handler in previous.items():
            signal.signal(signum, handler)

    return restore


class Program:
    """A child program, from before its start: a stop that comes while it is being started is not lost.

    Args:
        command: The program and its arguments.
        environ: Its whole environment; None: this process's.
        directory: Its working directory; None: this process's.
        new_session: Whether it gets a session, and so a process group, of its own.
        stop: Called with its process ID and SIGTERM or SIGINT: whom of its processes that concerns differs.
        pass_on: The same for SIGUSR1 and SIGUSR2.
        heed: Called with its standard error as it passes, in whole lines: see ``copy_lines``.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
        new_session: bool = False,
        stop: Callable[[int, int], None],
        pass_on: Callable[[int, int], None],
        heed: Callable[[bytes], None],
    ) -> None:
        self.stops: list[int] = []
        """The signals so far that asked for a stop."""
        self._early: list[int] = []
        self._stop = stop
        self._pass_on = pass_on
        self._process: subprocess.Popen[bytes] | None = None
        forward_signals(self._forward_stop, self._forward_other)
        process = subprocess.Popen(
            command,
            env=environ,
            cwd=directory,
            stdout=None if os.isatty(STDOUT) else subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=new_session,
        )
        # From this assignment on the handler itself tells the program, and adds none to those that came too early.
        self._process = process
        for early in self._early:
            stop(process.pid, early)
        self._copy = OutputCopy(process, heed)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The program; whoever waits for it or reaps it tells its return code to this object."""
        assert self._process is not None
        return self._process

    def exit_code(self) -> int:
        """Return its exit code as a shell sees it, once it has ended and its output has passed."""
        self._copy.finish()
        return as_shell(self.process.returncode)

    def _forward_stop(self, signum: int) -> None:
        self.stops.append(signum)
        if self._process is None:
            self._early.append(signum)
        else:
            self._stop(self._process.pid, signum)

    def _forward_other(self, signum: int) -> None:
        if self._process is not None:
            self._pass_on(self._process.pid, signum)
