"""Run a child program: forward signals to it, copy its output, and return its exit code.

Python runs a signal handler between two bytecode instructions. A signal between the last instruction and a blocking
system call does not interrupt the call: the handler would run only after the call returns. So a main thread that
handles signals splits an unbounded wait into short ones.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from smddp.process.exit_codes import as_shell
from smddp.process.output_lines import ChildStreams, OutputCopy
from smddp.process.preemption import FORWARDED_SIGNALS, USER_SIGNALS
from smddp.process.warm_parent import Process, WarmParent, begin

SIGNAL_SECONDS = 0.25
"""Seconds that a signal may wait for its handler, at most."""


def forward_signals(stop: Callable[[int], None], pass_on: Callable[[int], None]) -> Callable[[], None]:
    """Call `stop` for SIGTERM and SIGINT, and `pass_on` for SIGUSR1 and SIGUSR2, whose meaning the ranks define.

    Call it in the main thread. Return a function that restores the previous handlers.
    """

    def answer(signum: int, _frame: FrameType | None) -> None:
        (stop if signum in FORWARDED_SIGNALS else pass_on)(signum)

    previous = {signum: signal.signal(signum, answer) for signum in (*FORWARDED_SIGNALS, *USER_SIGNALS)}

    def restore() -> None:
        for signum, handler in previous.items():
            signal.signal(signum, handler)

    return restore


class Program:
    """A child program. Handlers are installed before it starts, so a stop's signal during the start is not lost.

    `environ` and `directory` default to this process's own. With `warm`, it is forked from that process.
    """

    # `stop` and `pass_on` are called with the program's process ID and the signal; `heed` with its standard error, in
    # whole lines (see `copy_lines`).
    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
        new_session: bool = False,
        warm: WarmParent | None = None,
        stop: Callable[[int, int], None],
        pass_on: Callable[[int, int], None],
        heed: Callable[[bytes], None],
    ) -> None:
        self.stops: list[int] = []
        """The stop's signals received so far."""
        self._early: list[int] = []
        self._stop = stop
        self._pass_on = pass_on
        self._process: Process | None = None
        forward_signals(self._forward_stop, self._forward_other)
        process = begin(
            warm,
            command,
            os.environ if environ is None else environ,
            streams=ChildStreams(pseudoterminal=False),
            directory=directory,
            new_session=new_session,
        )
        # From this assignment on, the handler forwards signals itself, so `_early` no longer grows: each stop's
        # signal is forwarded exactly once.
        self._process = process
        for early in self._early:
            stop(process.pid, early)
        self._copy = OutputCopy(process, heed)

    @property
    def process(self) -> Process:
        """The program. A caller that reaps it by other means must set its return code here."""
        assert self._process is not None
        return self._process

    def exit_code(self) -> int:
        """Return the shell's exit code of the ended program, after its output is copied."""
        self._copy.finish()
        assert self.process.returncode is not None
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


def wait_for(process: Process) -> int:
    """Wait until a process has ended, while signal handlers run, and return its ``Popen.returncode``."""
    while (code := process.poll()) is None:
        await_exit(process.pid, SIGNAL_SECONDS)
    return code


def await_exit(process: int, seconds: float) -> None:
    """Wait until a child has ended, which is still to be reaped; ``seconds`` at most.

    `subprocess.Popen.wait` with a time limit looks every 0.05 s.
    """
    try:
        descriptor = os.pidfd_open(process)
    except (AttributeError, OSError):  # an older kernel, or no Linux
        time.sleep(seconds)
        return
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll(seconds * 1000)
    finally:
        os.close(descriptor)
