"""One host that is a process of this machine, held through its supervisor: see ``host_supervisor.py``."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

from estimators.hosts.exit import Exit
from estimators.local.executors.executor import HostStartError, Serve

_MOST_MOUNTS = 253
"""As many descriptors as one message can carry; a job has at most 20 channels."""
_MESSAGE_BYTES = 1 << 18
"""Room for the longest message: a PATH in which the program was not found."""
_START_SECONDS = 60.0
"""How long a host may take to its next report; a machine under load takes seconds, a host that hangs for ever."""
_SUPERVISOR = str(Path(__file__).with_name("host_supervisor.py"))


class SupervisedProcess:
    """A `HostProcess`, through its supervisor's pipes.

    Args:
        order: What the supervisor is told.
        serve: Serves the host's mounts.

    Raises:
        HostStartError: If the program can't be started, with the reason.
    """

    def __init__(self, order: dict[str, Any], serve: Serve | None) -> None:
        self._killed = False
        status, reporting = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with reporting:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", _SUPERVISOR, str(reporting.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[reporting.fileno()],
                start_new_session=True,
                cwd="/",
                bufsize=0,
            )
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._control, self._output = self._keeper.stdin, self._keeper.stdout
        self._send(json.dumps(order).encode() + b"\n")
        try:
            with status:
                status.settimeout(_START_SECONDS)
                answer = _receive(status, serve)
        except BaseException as error:
            self._keeper.kill()  # it takes no orders yet; its child goes with it
            self._output.close()
            self.wait()
            if isinstance(error, TimeoutError):
                raise _not_started(order, f"it did not run within {_START_SECONDS:g} seconds") from error
            raise
        if "pid" not in answer:
            with self._output as output:
                said = answer.get("error") or output.read().decode(errors="replace").strip()
            self.wait()
            raise _not_started(order, said)
        self._pid: int = answer["pid"]

    @property
    def pid(self) -> int:
        """The program's process ID, as this machine counts."""
        return self._pid

    @property
    def output(self) -> BinaryIO:
        """Standard output and standard error, together."""
        return self._output  # type: ignore[return-value]  # typeshed calls every pipe of Popen IO[bytes]

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
            code = self._keeper.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._control.close()
        if code >= 0:
            return Exit(code=code)
        # The program was killed, or its supervisor, and it with that.
        return Exit(code=128 - code, lost=None if self._killed else "its first process was killed from outside")

    def _send(self, message: bytes) -> None:
        """Write to the supervisor, which takes its orders until the host has ended and none thereafter."""
        try:
            while message:
                message = message[self._control.write(message) :]
        except (BrokenPipeError, ValueError):  # the supervisor has ended; its pipe may be closed already
            return


def _receive(status: socket.socket, serve: Serve | None) -> dict[str, Any]:
    """What the supervisor reports in the end; empty if it ended without a word. The mounts are served in between."""
    while True:
        text, devices, _, _ = socket.recv_fds(status, _MESSAGE_BYTES, _MOST_MOUNTS)
        if not devices:
            answer: dict[str, Any] = json.loads(text or b"{}")
            return answer
        for device in devices:
            os.set_inheritable(device, False)
        assert serve is not None
        serve(tuple(devices))


def _not_started(order: dict[str, Any], why: str) -> HostStartError:
    return HostStartError(f"{order['name']}: {order['argv'][0]} could not be started: {why}")
