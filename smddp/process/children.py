"""A group of child processes: forward signals, end all after the first failure, and keep the exit codes.

An agent uses it for its ranks, and ``smddp run`` for its agents. Nothing here knows ranks or nodes.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smddp.display_text import counted
from smddp.failure import killed_by
from smddp.process.exit_codes import RESUMABLE, as_shell
from smddp.process.leftovers import Leftovers
from smddp.process.output_lines import ChildStreams, OutputCopy, Tail
from smddp.process.process_tree import START_SECONDS, catches
from smddp.process.warm_parent import Process, WarmParent, begin

logger = logging.getLogger(__name__)

STOP_GRACE = 120.0
"""Seconds between SIGTERM and SIGKILL, as SageMaker gives a container."""

_LOOK_SECONDS = 0.05
_KILLED_SECONDS = 10.0
"""Seconds between two warnings about processes that SIGKILL has not ended."""

FAILURE_GRACE = 25.0
"""Seconds that the other processes have to end after a failure, so that all ends within half a minute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessExit:
    """The exit of one process."""

    index: int
    """The position in the order of starts."""
    pid: int
    code: int
    """The shell's exit code: 128 + n for a process killed by signal n."""
    tail: str | None = None
    """The end of standard error; None if it was not copied line by line."""

    def __str__(self) -> str:
        name = killed_by(self.code)
        return f"ended with code {self.code}" + (f" ({name})" if name else "")


def exit_code(exits: Sequence[ProcessExit]) -> int:
    """Return one exit code for processes that ended in this order.

    0 if all succeeded, 75 if every failure is resumable, else the code of the first other failure.
    """
    failures = [exited.code for exited in exits if exited.code != 0]
    return next((code for code in failures if code != RESUMABLE), RESUMABLE if failures else 0)


class ChildProcesses:
    """A group of child processes. With `leftovers`, `poll` reaps orphans and `end_leftovers` ends them.

    A process with children outside the group must pass None.
    """

    def __init__(self, leftovers: Leftovers | None = None) -> None:
        self._leftovers = leftovers
        self.warm: WarmParent | None = None
        """The process from which the children are forked; None starts each one as a new program."""
        self.awaits_handlers = True
        """Whether a stop's signal waits until a process that has just started can have a handler."""
        # Guards all fields below. Reentrant: a signal handler calls `forward` and `pass_on` in the main thread, which
        # may own the lock. `start` creates a process and adds it to `_running` in one step under the lock, so that
        # `Leftovers.reap` never takes a child for an orphan. `poll` and `kill` free the lock while they wait: `poll`
        # for `timeout` at most, `kill` without a bound, until the killed processes have ended.
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)  # notified once for each exit
        self._running: dict[int, Process] = {}
        self._started = 0
        self.has_started = False
        """Whether any process was ever started, also before a restart."""
        self._began: dict[int, float] = {}
        self._exits: list[ProcessExit] = []
        self._deadline: float | None = None
        self._stop_signal: int | None = None

    @property
    def exits(self) -> tuple[ProcessExit, ...]:
        """The exits so far, in order."""
        with self._lock:
            return tuple(self._exits)

    @property
    def told_to_stop(self) -> bool:
        """Whether a stop's signal was forwarded."""
        with self._lock:
            return self._stop_signal is not None

    def start(
        self, command: Sequence[str], *, environ: Mapping[str, str], new_session: bool = False, lines: bool = False
    ) -> Process:
        """Start a process with exactly `environ`; after a stop's signal, forward the signal to it.

        `new_session` shields it from the terminal's signals (Ctrl-C). `lines` copies its output line by line, on a
        terminal through a pseudoterminal; otherwise it inherits the standard streams.
        """
        with self._lock:
            process = begin(
                self.warm, command, environ, streams=ChildStreams() if lines else None, new_session=new_session
            )
            index, self._started = self._started, self._started + 1
            self.has_started = True
            self._began[process.pid] = time.monotonic()  # first: a signal's handler may tell all running ones now
            self._running[index] = process
            if self._stop_signal is not None:
                self._tell(process, self._stop_signal)
        threading.Thread(target=self._await, args=(index, process), daemon=True).start()
        return process

    def await_warm(self) -> None:
        """Wait until processes can be forked from the warm parent, if there is one; without the lock, for seconds."""
        if self.warm is not None:
            self.warm.settle()

    def close_warm(self) -> None:
        """End the warm parent, if there is one; children live on."""
        if self.warm is not None:
            self.warm.close()
            self.warm = None

    def forward(self, signum: int) -> bool:
        """Send a stop's signal to all processes, which then have `STOP_GRACE` seconds; return whether any runs."""
        with self._lock:
            if self.warm is not None and not self.has_started:
                self.warm.cancel()
            if self._deadline is None:
                self._deadline = time.monotonic() + STOP_GRACE
            self._stop_signal = signum
            for process in self._running.values():
                self._tell(process, signum)
            return bool(self._running)

    def pass_on(self, signum: int) -> None:
        """Send a signal whose meaning the processes define; it is not a stop, and starts no grace period."""
        with self._lock:
            for process in self._running.values():
                self._tell(process, signum)

    def poll(self, timeout: float, *, failure_grace: float = FAILURE_GRACE) -> bool:
        """Wait up to `timeout` seconds for an exit, and return whether all processes have ended.

        After a failure, end the others: SIGTERM, then SIGKILL after `failure_grace` seconds; SIGKILL at once if it is
        0.
        """
        with self._lock:
            if self._leftovers is not None:
                self._leftovers.reap({process.pid for process in self._running.values()})
            seen = len(self._exits)
            self._ended.wait_for(lambda: len(self._exits) > seen or not self._running, timeout)
            failed = next((exited for exited in self._exits if exited.code != 0), None)
            if failed is not None and self._running and self._deadline is None:
                # A resumable exit belongs to an agreed stop: the other processes may still be saving.
                grace = STOP_GRACE if failed.code == RESUMABLE else failure_grace
                logger.info("Process %d %s: ending the others.", failed.pid, failed)
                if grace == 0:
                    self.kill()
                else:
                    self.end(grace)
            if self._deadline is not None and time.monotonic() > self._deadline and self._running:
                logger.warning(
                    "%s outlived the grace: killing what is left.", counted(len(self._running), "process", "processes")
                )
                self._signal(signal.SIGKILL)
            return not self._running

    def end(self, grace: float) -> None:
        """Send SIGTERM to all; `poll` kills those that run after `grace` seconds, or after an earlier deadline."""
        with self._lock:
            deadline = time.monotonic() + grace
            self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all running processes, and wait until they have ended."""
        with self._lock:
            self._signal(signal.SIGKILL)
            # Without a bound: a restart beside a process that still writes would tear its files.
            while not self._ended.wait_for(lambda: not self._running, _KILLED_SECONDS):
                # The output of a process that has ended may still be copied: nobody reads it, as behind a pager.
                alive = [str(process.pid) for process in self._running.values() if process.poll() is None]
                if alive:
                    logger.warning(
                        "Still running %.0f s after SIGKILL: process %s. The kernel ends it only after its access to a "
                        "disk or a network file system: see that it is reachable.",
                        _KILLED_SECONDS,
                        ", ".join(alive),
                    )

    def end_leftovers(self) -> None:
        """End the orphans of these processes, after all of them have ended."""
        if self._leftovers is not None:
            self._leftovers.end(logger.warning)

    def forget(self) -> None:
        """Reset after all have ended, for a restart; a requested stop stays in force."""
        with self._lock:
            assert not self._running
            self._started, self._exits, self._deadline = 0, [], None

    def _tell(self, process: Process, signum: int) -> None:
        """Send a signal once the process has a handler, or after `START_SECONDS`: without a handler it would die.

        Without `awaits_handlers`, send it at once.
        """
        until = self._began[process.pid] + (START_SECONDS if self.awaits_handlers else 0.0)
        if catches(process.pid, signum) or time.monotonic() >= until:
            process.send_signal(signum)
            return

        def tell_later() -> None:
            while process.poll() is None and not catches(process.pid, signum) and time.monotonic() < until:
                time.sleep(_LOOK_SECONDS)
            process.send_signal(signum)  # no effect on an ended process

        threading.Thread(target=tell_later, daemon=True).start()

    def _signal(self, signum: int) -> None:
        for process in list(self._running.values()):
            process.send_signal(signum)

    def _await(self, index: int, process: Process) -> None:
        tail = Tail()
        copy = OutputCopy(process, tail.keep)
        status = process.wait()
        copy.finish()
        with self._lock:
            del self._running[index]
            text = None if process.stderr is None else tail.text
            self._exits.append(ProcessExit(index=index, pid=process.pid, code=as_shell(status), tail=text))
            self._ended.notify_all()
