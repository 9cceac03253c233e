"""Processes that live and end together: forward signals, notice the first failure, end the rest, keep the exit code.

It serves ranks below an agent and agents below ``smddp run`` alike. It knows nothing of ranks or nodes.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smddp.job.failure_report import killed_by
from smddp.process.exit_codes import RESUMABLE, as_shell
from smddp.process.leftovers import Leftovers
from smddp.process.output_lines import OutputCopy, Tail
from smddp.process.process_tree import START_SECONDS, catches

logger = logging.getLogger(__name__)

STOP_GRACE = 120.0
"""Seconds between SIGTERM and SIGKILL: those that SageMaker gives a container."""

_LOOK_SECONDS = 0.05

FAILURE_GRACE = 25.0
"""Seconds that the others have to end once one of them failed: with them, all is over within half a minute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessExit:
    """How one process ended."""

    index: int
    """The position of the process in the order of the starts."""
    pid: int
    code: int
    """As a shell sees it: 128 + n for a process that signal n killed."""
    tail: str | None = None
    """The end of its standard error; None if that was not copied line by line."""

    def __str__(self) -> str:
        name = killed_by(self.code)
        return f"ended with code {self.code}" + (f" ({name})" if name else "")


def exit_code(exits: Sequence[ProcessExit]) -> int:
    """Return the one exit code of processes that ended in this order.

    0 if all succeeded, 75 if all that failed can be resumed, else the code of the first that truly failed.
    """
    failures = [exited.code for exited in exits if exited.code != 0]
    return next((code for code in failures if code != RESUMABLE), RESUMABLE if failures else 0)


class ChildProcesses:
    """A set of child processes that is watched as a whole.

    Args:
        leftovers: Whose orphans ``poll`` reaps, and ``end_leftovers`` ends; None leaves them to others, as a process
            must that has children of its own.
    """

    def __init__(self, leftovers: Leftovers | None = None) -> None:
        self._leftovers = leftovers
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._started = 0
        self._began: dict[int, float] = {}
        self._exits: list[ProcessExit] = []
        self._deadline: float | None = None
        self._stop_signal: int | None = None

    @property
    def exits(self) -> tuple[ProcessExit, ...]:
        """Those that have ended, in the order in which they ended."""
        with self._lock:
            return tuple(self._exits)

    @property
    def told_to_stop(self) -> bool:
        """Whether a signal was forwarded to them."""
        with self._lock:
            return self._stop_signal is not None

    def start(
        self, command: Sequence[str], *, environ: Mapping[str, str], new_session: bool = False, lines: bool = False
    ) -> subprocess.Popen[bytes]:
        """Start one more process.

        Args:
            command: The program and its arguments.
            environ: The whole environment of the process.
            new_session: Keep the terminal's own signals (Ctrl-C) from it: it gets those that are forwarded.
            lines: Copy its output line by line; otherwise it inherits the standard streams.
        """
        pipe = subprocess.PIPE if lines else None
        with self._lock:
            process = subprocess.Popen(
                command, env=dict(environ), start_new_session=new_session, stdout=pipe, stderr=pipe
            )
            index, self._started = self._started, self._started + 1
            self._running[index] = process
            self._began[process.pid] = time.monotonic()
            if self._stop_signal is not None:
                self._tell(process, self._stop_signal)
        threading.Thread(target=self._await, args=(index, process), daemon=True).start()
        return process

    def forward(self, signum: int) -> bool:
        """Send a signal to every process at once; from now on they have ``STOP_GRACE`` seconds to end.

        Returns:
            Whether there was any process to send it to.
        """
        with self._lock:
            if self._deadline is None:
                self._deadline = time.monotonic() + STOP_GRACE
            self._stop_signal = signum
            for process in self._running.values():
                self._tell(process, signum)
            return bool(self._running)

    def pass_on(self, signum: int) -> None:
        """Send a signal whose meaning is theirs to know: no grace begins, and it is no stop to anybody here."""
        with self._lock:
            for process in self._running.values():
                self._tell(process, signum)

    def poll(self, timeout: float, *, failure_grace: float = FAILURE_GRACE) -> bool:
        """Wait up to ``timeout`` seconds for a process to end; once one failed, end the rest.

        Args:
            timeout: The longest wait.
            failure_grace: Seconds for the others once one failed; without any, SIGKILL is the first that they hear.

        Returns:
            Whether all have ended.
        """
        with self._lock:
            if self._leftovers is not None:
                self._leftovers.reap({process.pid for process in self._running.values()})
            seen = len(self._exits)
            self._ended.wait_for(lambda: len(self._exits) > seen or not self._running, timeout)
            failed = next((exited for exited in self._exits if exited.code != 0), None)
            if failed is not None and self._running and self._deadline is None:
                # Whoever ends resumable was part of an agreed stop: its peers may still be saving.
                grace = STOP_GRACE if failed.code == RESUMABLE else failure_grace
                logger.info("Process %d %s: ending the others.", failed.pid, failed)
                if grace == 0:
                    self.kill()
                else:
                    self.end(grace)
            if self._deadline is not None and time.monotonic() > self._deadline and self._running:
                logger.warning("%d processes outlived their grace: killing them.", len(self._running))
                self._signal(signal.SIGKILL)
            return not self._running

    def end(self, grace: float) -> None:
        """Ask all to end, by SIGTERM; who has not ended within ``grace`` seconds, or an earlier grace, is killed."""
        with self._lock:
            deadline = time.monotonic() + grace
            self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End whatever still runs, at once, and wait until it is gone."""
        with self._lock:
            self._signal(signal.SIGKILL)
            self._ended.wait_for(lambda: not self._running)

    def end_leftovers(self) -> None:
        """End what these processes left behind, after all of them have ended."""
        if self._leftovers is not None:
            self._leftovers.end(logger.warning)

    def forget(self) -> None:
        """Begin anew after all have ended; a stop that was asked for still holds."""
        with self._lock:
            assert not self._running
            self._started, self._exits, self._deadline = 0, [], None

    def _tell(self, process: subprocess.Popen[bytes], signum: int) -> None:
        """Send a signal; first let a process that has just begun set its handler, without which it would be killed."""
        until = self._began[process.pid] + START_SECONDS
        if catches(process.pid, signum) or time.monotonic() >= until:
            process.send_signal(signum)
            return

        def tell_later() -> None:
            while process.poll() is None and not catches(process.pid, signum) and time.monotonic() < until:
                time.sleep(_LOOK_SECONDS)
            process.send_signal(signum)  # which does nothing to one that has ended

        threading.Thread(target=tell_later, daemon=True).start()

    def _signal(self, signum: int) -> None:
        for process in list(self._running.values()):
            process.send_signal(signum)

    def _await(self, index: int, process: subprocess.Popen[bytes]) -> None:
        tail = Tail()
        copy = OutputCopy(process, tail.keep)
        status = process.wait()
        copy.finish()
        with self._lock:
            del self._running[index]
            text = None if process.stderr is None else tail.text
            self._exits.append(ProcessExit(index=index, pid=process.pid, code=as_shell(status), tail=text))
            self._ended.notify_all()
