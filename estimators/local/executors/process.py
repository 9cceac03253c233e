"""Runs each host of a job as processes of this machine: no Docker, no root, and nothing that outlives this process.

Where user namespaces are allowed, a host has its own ``/opt/ml``, host name, ``/etc/hosts`` and process IDs. Where they
are barred (some containers, Ubuntu's AppArmor), the program gets ``SAGEMAKER_BASE_DIR`` instead, and a warning says so.
Either way a keeper process stands between: see ``keeper.py``.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from estimators.local.executors.executor import HostSpec, HostStartError, Serve

logger = logging.getLogger(__name__)

_MOST_MOUNTS = 253
"""As many descriptors as one message can carry; a job has at most 20 channels."""
_MESSAGE_BYTES = 1 << 18
"""Room for the longest message: a PATH in which the program was not found."""
_START_SECONDS = 60.0
"""How long a host may take to its next report; a machine under load takes seconds, a host that hangs for ever."""
_KEEPER = str(Path(__file__).with_name("keeper.py"))


class ProcessExecutor:
    """An `Executor` of plain processes.

    Args:
        isolated: Whether hosts get namespaces of their own. None tries it once, and warns if they are barred.
    """

    def __init__(self, *, isolated: bool | None = None) -> None:
        self._isolated = _namespaces_are_allowed() if isolated is None else isolated

    @property
    def isolated(self) -> bool:
        """Whether a program sees its directory at ``/opt/ml`` and reaches the hosts by their names."""
        return self._isolated

    @functools.cached_property
    def cannot_mount(self) -> str | None:
        """Why hosts can't have mounts here; None if they can. Tried once."""
        if not self._isolated:
            return "user namespaces are barred here"
        try:
            _try_a_host("mount")
        except HostStartError as error:
            return str(error).partition("could not be started: ")[2] or str(error)
        return None

    def start(self, host: HostSpec, serve: Serve | None = None) -> _KeptProcess:
        """Start the host's program in ``/opt/ml/code``.

        Args:
            host: What to start.
            serve: Serves the host's mounts; only a host without any needs none. What it raises ends the host.

        Raises:
            HostStartError: If the program can't be started, with the reason.
        """
        ml_root = str(host.ml_root.absolute())
        if host.mounts and not self._isolated:
            raise HostStartError(f"{host.name}: only a host with namespaces of its own can have mounts")
        assert serve or not host.mounts
        root = "/opt/ml" if self._isolated else ml_root
        base = {} if self._isolated else {"SAGEMAKER_BASE_DIR": ml_root}
        return _KeptProcess(
            {
                "isolated": self._isolated,
                "name": host.name,
                "hosts": dict(host.hosts),
                "ml_root": ml_root,
                "argv": host.argv,
                "environment": {**host.environment, **base},
                "directory": f"{root}/code",
                "mounts": host.mounts,
            },
            serve,
        )


class _KeptProcess:
    """A `HostProcess`, through its keeper's pipes."""

    def __init__(self, spec: dict[str, Any], serve: Serve | None) -> None:
        status, reporting = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with reporting:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", _KEEPER, str(reporting.fileno())],
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
        self._send(json.dumps(spec).encode() + b"\n")
        try:
            with status:
                status.settimeout(_START_SECONDS)
                answer = _receive(status, serve)
        except BaseException as error:
            self._keeper.kill()  # it takes no orders yet; its child goes with it
            self._output.close()
            self.wait()
            if isinstance(error, TimeoutError):
                raise _not_started(spec, f"it did not run within {_START_SECONDS:g} seconds") from error
            raise
        if "pid" not in answer:
            with self._output as output:
                said = answer.get("error") or output.read().decode(errors="replace").strip()
            self.wait()
            raise _not_started(spec, said)
        self._pid: int = answer["pid"]

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def output(self) -> BinaryIO:
        return self._output  # type: ignore[return-value]  # typeshed calls every pipe of Popen IO[bytes]

    def signal(self, signum: int) -> None:
        self._send(bytes([signum]))

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int | None:
        try:
            code = self._keeper.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._control.close()
        return code if code >= 0 else 128 - code  # negative: the keeper was killed, and its host with it

    def _send(self, message: bytes) -> None:
        """Write to the keeper, which takes its orders until the host has ended and none thereafter."""
        try:
            while message:
                message = message[self._control.write(message) :]
        except (BrokenPipeError, ValueError):  # the keeper has ended; its pipe may be closed already
            return


def _receive(status: socket.socket, serve: Serve | None) -> dict[str, Any]:
    """What the keeper reports in the end; empty if it ended without a word. The mounts are served in between."""
    while True:
        text, devices, _, _ = socket.recv_fds(status, _MESSAGE_BYTES, _MOST_MOUNTS)
        if not devices:
            answer: dict[str, Any] = json.loads(text or b"{}")
            return answer
        for device in devices:
            os.set_inheritable(device, False)
        assert serve is not None
        serve(tuple(devices))


def _not_started(spec: dict[str, Any], why: str) -> HostStartError:
    return HostStartError(f"{spec['name']}: {spec['argv'][0]} could not be started: {why}")


def _namespaces_are_allowed() -> bool:
    try:
        _try_a_host()
    except HostStartError as error:
        logger.warning(
            "jobs run without an /opt/ml and host names of their own, with SAGEMAKER_BASE_DIR and loopback "
            "addresses instead, because user namespaces are barred here (%s)",
            error,
        )
        return False
    return True


def _try_a_host(*mounts: str) -> None:
    """Start one with namespaces, and see it end.

    Raises:
        HostStartError: It could not be started.
    """
    with tempfile.TemporaryDirectory(prefix="smddp-probe-") as directory:
        root = Path(directory)
        for name in ("code", *mounts):
            (root / name).mkdir()
        spec = HostSpec(
            name="algo-1",
            address="127.0.0.1",
            ml_root=root,
            argv=("true",),
            environment={"PATH": os.environ.get("PATH", os.defpath)},
            hosts={"algo-1": "127.0.0.1"},
            mounts=mounts,
        )
        host = ProcessExecutor(isolated=True).start(spec, _close)
        with host.output:
            host.wait()


def _close(devices: tuple[int, ...]) -> None:
    for device in devices:
        os.close(device)
