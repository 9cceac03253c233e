"""One program that is a process of this machine, held through its supervisor: see ``host_supervisor.py``."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from estimators.hosts.exit import Exit
from estimators.local.executors.executor import HostStartError, NoNamespacesError
from smddp.process.exit_codes import as_shell
from smddp.process.output_lines import merge_lines

START_SECONDS = 60.0
"""How long a host may take to its report; a machine under load takes seconds, a host that hangs for ever."""
SUPERVISOR = str(Path(__file__).with_name("host_supervisor.py"))


@dataclass(kw_only=True, slots=True, frozen=True)
class SupervisedProgram:
    """What a supervisor is told: a program, and what it is to see of the machine."""

    name: str
    """The host's name, for its program and in errors."""
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """All of it."""
    directory: str
    """Where it runs, as it sees the machine."""
    isolated: bool
    """Whether it gets namespaces of its own; the fields below are for one that does."""
    ml_root: str
    """What it sees as ``/opt/ml``."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Addresses by name, besides localhost."""
    binds: Mapping[str, str] = field(default_factory=dict)
    """Files and directories of the machine by the path, which must be there, at which it is to see them."""
    open_files: int | None = None
    """Its soft limit of open files; None: this process's."""
    private_network: bool = False
    """Whether its network has no address but its own loopback's: nobody else reaches a port that it opens."""
    delivered: tuple[int, ...] = ()
    """Signals that the supervisor, when it is sent one itself, delivers to it."""
    given: tuple[str, ...] = ()
    """Variables that are in its environment as the supervisor finds them on its machine, if it does."""


class Supervised:
    """A `HostProcess` behind a supervisor, wherever that runs: orders go in, output and the exit code come out.

    Args:
        program: What to start; the first order.
        process: The supervisor, or what leads to it, with unbuffered pipes.
        output: What the program writes.
    """

    def __init__(self, program: SupervisedProgram, process: subprocess.Popen[bytes], output: BinaryIO) -> None:
        assert process.stdin is not None
        self._killed = False
        self._process = process
        self._orders = process.stdin
        # One thread waits and closes the pipe, another sends signals: without it, a signal could go into a file that
        # has got the number of the pipe meanwhile.
        self._sending = Lock()
        self._output = output
        self._send(json.dumps(asdict(program)).encode() + b"\n")

    @property
    def output(self) -> BinaryIO:
        """Standard output and standard error, together, of which no line is torn by the other's."""
        return self._output

    def signal(self, signum: int) -> None:
        """Send a signal to the program alone; nothing if it has ended."""
        self._send(bytes([signum]))

    def kill(self) -> None:
        """End the program and everything that it started, at once."""
        self._killed = True
        self.signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> Exit | None:
        """How it ended, or None after ``timeout`` seconds."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        with self._sending:
            self._orders.close()
        return Exit(code=as_shell(code), lost=None if self._killed else self._loss(code))

    def _loss(self, returncode: int) -> str | None:
        """Why a host that ended so, and was not killed by this process, was lost; None if it was not."""
        raise NotImplementedError

    def _abandon(self) -> None:
        """End a supervisor that has not answered: it takes no orders yet, and its child goes with it."""
        self._process.kill()
        self._output.close()
        self.wait()

    def _send(self, message: bytes) -> None:
        """Write to the supervisor, which takes its orders until the host has ended and none thereafter."""
        with self._sending:
            try:
                while message and not self._orders.closed:
                    message = message[self._orders.write(message) :]
            except BrokenPipeError:  # the supervisor has ended
                return


class SupervisedProcess(Supervised):
    """A process of this machine, through its supervisor's pipes.

    Args:
        program: What to start.
        log: Where its output goes; None: `output` has it.
        keep: Descriptors that are to stay open in the supervisor, and not in the program, until it has ended.
        umask: Of the program; -1: this process's.

    Raises:
        NoNamespacesError: This machine lets the program have no namespaces of its own.
        HostStartError: The program can't be started for another reason, which it gives.
    """

    def __init__(
        self,
        program: SupervisedProgram,
        *,
        log: BinaryIO | None = None,
        keep: tuple[int, ...] = (),
        umask: int = -1,
    ) -> None:
        status, reporting = socket.socketpair()
        with reporting:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", SUPERVISOR, str(reporting.fileno()), *map(str, keep)],
                stdin=subprocess.PIPE,
                stdout=log or subprocess.PIPE,
                stderr=log or subprocess.PIPE,
                pass_fds=[reporting.fileno(), *keep],
                start_new_session=True,
                cwd="/",
                umask=umask,
                bufsize=0,
            )
        streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
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
        self._pid: int = answer["pid"]

    @property
    def pid(self) -> int:
        """The program's process ID, as this machine counts."""
        return self._pid

    def _loss(self, returncode: int) -> str | None:
        """Say that the program was killed, or its supervisor, and it with that."""
        return "its first process was killed from outside" if returncode < 0 else None


def not_started(program: SupervisedProgram, why: str) -> HostStartError:
    """Return the error that says why a program does not run."""
    return HostStartError(f"{program.name}: {program.argv[0]} could not be started: {why}")
