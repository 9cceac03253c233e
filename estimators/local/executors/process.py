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

from estimators.local.executors.executor import HostSpec, HostStartError

logger = logging.getLogger(__name__)

_MOST_MOUNTS = 253
"""As many descriptors as one message can carry; a job has at most 20 channels."""
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

    def start(self, host: HostSpec) -> _KeptProcess:
        """Start the host's program in ``/opt/ml/code``.

        Raises:
            HostStartError: If the program can't be started, with the reason.
        """
        ml_root = str(host.ml_root.absolute())
        if host.mounts and not self._isolated:
            raise HostStartError(f"{host.name}: only a host with namespaces of its own can have mounts")
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
            }
        )


class _KeptProcess:
    """A `HostProcess`, through its keeper's pipes."""

    def __init__(self, spec: dict[str, Any]) -> None:
        status, reporting = socket.socketpair()
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
        with status:
            self._send(json.dumps(spec).encode() + b"\n")
            answer, self._devices = _receive(status)
        if "pid" not in answer:
            with self._output as output:
                said = answer.get("error") or output.read().decode(errors="replace").strip()
            self.wait()
            raise HostStartError(f"{spec['name']}: {spec['argv'][0]} could not be started: {said}")
        self._pid: int = answer["pid"]

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def devices(self) -> tuple[int, ...]:
        return self._devices

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


def _receive(status: socket.socket) -> tuple[dict[str, Any], tuple[int, ...]]:
    """What the keeper reports, and the descriptors that come with it."""
    text, devices = b"", []
    while not text.endswith(b"\n"):
        piece, received, _, _ = socket.recv_fds(status, 1 << 16, _MOST_MOUNTS)
        devices += received
        if not piece:
            break
        text += piece
    for device in devices:
        os.set_inheritable(device, False)
    return json.loads(text or b"{}"), tuple(devices)


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
        host = ProcessExecutor(isolated=True).start(spec)
        for device in host.devices:
            os.close(device)
        with host.output:
            host.wait()
