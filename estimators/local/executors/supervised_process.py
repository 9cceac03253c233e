"""One program as a process of this machine, controlled through its supervisor: see ``host_supervisor.py``."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from estimators.hosts.failure import Exit
from estimators.local.executors.executor import HostStartError, NoNamespacesError
from estimators.local.executors.warm_hosts import WarmHosts
from smddp.process.exit_codes import as_shell
from smddp.process.output_lines import merge_lines
from smddp.process.program import await_exit
from smddp.process.warm_parent import Process

START_SECONDS = 60.0
"""Time limit in seconds for a host's first report; a machine under load takes seconds, a hanging host never reports."""
_DEATH_SECONDS = 5.0
"""Time limit in seconds for a killed program to end: one that hangs in the kernel never does."""
SUPERVISOR = str(Path(__file__).with_name("host_supervisor.py"))


@dataclass(kw_only=True, slots=True, frozen=True)
class SupervisedProgram:
    """What a supervisor is to run: a program, with its view of the machine."""

    name: str
    """Name of the host, for its program and in errors."""
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """All variables of the program."""
    directory: str
    """Working directory, as the program sees it."""
    isolated: bool
    """Whether the program gets its own namespaces; `ml_root`, `hosts`, `binds` and `private_network` apply only
    then."""
    ml_root: str
    """The directory that the program sees as ``/opt/ml``."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Addresses by host name, besides localhost."""
    binds: Mapping[str, str] = field(default_factory=dict)
    """Files and directories of the machine, by the path at which the program sees them; the path must exist."""
    open_files: int | None = None
    """Soft limit of the program's open files; None: this process's."""
    private_network: bool = False
    """Whether the program's network is only its own loopback, so that no other program reaches its ports."""
    delivered: tuple[int, ...] = ()
    """Signals that the supervisor delivers to the program when it gets them itself."""
    given: tuple[str, ...] = ()
    """Variables that the program gets from the supervisor's environment, if they are set there."""


class Supervised:
    """A `HostProcess` run by a supervisor, here or on another machine: it takes orders, and returns output and exit.

    ``process`` is the supervisor, or a program connected to it, such as srun, with unbuffered pipes.
    """

    def __init__(self, program: SupervisedProgram, process: Process, output: BinaryIO) -> None:
        assert process.stdin is not None
        self._killed = False
        self._process = process
        self._orders = process.stdin
        # Guards `_orders`: one thread waits and closes the pipe, another sends signals. Without the lock, a signal
        # could be written to a file that reuses the pipe's descriptor. A write under the lock ends when the supervisor
        # reads, or ends.
        self._sending = Lock()
        self._output = output
        self._send(json.dumps(asdict(program)).encode() + b"\n")

    @property
    def output(self) -> BinaryIO:
        """Standard output and standard error together, as whole lines."""
        return self._output

    def signal(self, signum: int) -> None:
        """Send a signal to the program alone; do nothing if it has ended."""
        self._send(bytes([signum]))

    def kill(self) -> None:
        """End the program and every process that it started, at once."""
        self._killed = True
        self.signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> Exit | None:
        """Return how the host ended, or None after ``timeout`` seconds."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        with self._sending:
            self._orders.close()
        return Exit(code=as_shell(code), lost=None if self._killed else self._loss(code))

    def _loss(self, returncode: int) -> str | None:
        """Return why a host that ended was lost; None if it was not. Not called if this process killed it."""
        raise NotImplementedError

    def _abandon(self) -> None:
        """Kill a supervisor that has not answered; its child dies with it."""
        self._process.kill()
        self._output.close()
        self.wait()

    def _send(self, message: bytes) -> None:
        """Write an order to the supervisor; do nothing once the host has ended."""
        with self._sending:
            try:
                while message and not self._orders.closed:
                    message = message[self._orders.write(message) :]
            except BrokenPipeError:  # the supervisor has ended
                return


class SupervisedProcess(Supervised):
    """A process of this machine, through its supervisor's pipes.

    The output goes to ``log``, or to `output` without a ``log``. ``keep`` are descriptors that stay open in the
    supervisor, but not in the program, until the program ends. ``umask`` is the program's; -1: this process's.
    ``warm`` forks the supervisor and the program, unless there is a ``log``. Raise NoNamespacesError if this machine
    bars namespaces, HostStartError with the reason for another failure.
    """

    def __init__(
        self,
        program: SupervisedProgram,
        *,
        log: BinaryIO | None = None,
        keep: tuple[int, ...] = (),
        umask: int = -1,
        warm: WarmHosts | None = None,
    ) -> None:
        status, reporting = socket.socketpair()
        with reporting:
            passed = [reporting.fileno(), *keep]
            words = [SUPERVISOR, *map(str, passed)]
            process: Process | None = None
            if warm is not None and log is None:
                process = warm.start([sys.executable, *words], environ=program.environment, passed=passed, umask=umask)
            process = process or subprocess.Popen(
                [sys.executable, "-I", "-S", *words],
                stdin=subprocess.PIPE,
                stdout=log or subprocess.PIPE,
                stderr=log or subprocess.PIPE,
                pass_fds=passed,
                start_new_session=True,
                cwd="/",
                umask=umask,
                bufsize=0,
            )
        streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
        self._pid = self._unreaped = 0  # until the supervisor tells it
        super().__init__(program, process, merge_lines(streams) if streams else BytesIO())
        try:
            with status, status.makefile("rb") as report:
                status.settimeout(START_SECONDS)
                answer: dict[str, Any] = json.loads(report.readline() or b"{}")  # it may end without a word
        except BaseException as error:
            self._abandon()
            if isinstance(error, TimeoutError):
                raise not_started(program, f"it did not run within {START_SECONDS:g} seconds") from error
            raise
        if "pid" not in answer:
            with self._output as output:
                said = answer.get("error") or output.read().decode(errors="replace").strip()
            self.wait()
            if answer.get("no_namespaces"):
                raise NoNamespacesError(str(not_started(program, said)), said)
            raise not_started(program, said)
        self._pid = self._unreaped = answer["pid"]

    @property
    def pid(self) -> int:
        """The program's process ID on this machine."""
        return self._pid

    def wait(self, timeout: float | None = None) -> Exit | None:
        """Return how the host ended, or None after ``timeout`` seconds; reap a program whose supervisor was killed."""
        ended = super().wait(timeout)
        if ended is not None and ended.lost is not None and self._unreaped:
            pid, self._unreaped = self._unreaped, 0  # once: the number may later be another child's
            with suppress(ChildProcessError):  # its supervisor has reaped it, or this process does not adopt orphans
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    await_exit(pid, _DEATH_SECONDS)
                    os.waitpid(pid, os.WNOHANG)
        return ended

    def _loss(self, returncode: int) -> str | None:
        """Return that the program was killed, if a signal ended it or its supervisor; else None."""
        return "its first process was killed from outside" if returncode < 0 else None


def not_started(program: SupervisedProgram, why: str) -> HostStartError:
    """Return the error of a program that does not run, with the reason."""
    return HostStartError(f"{program.name}: {program.argv[0]} could not be started: {why}")
