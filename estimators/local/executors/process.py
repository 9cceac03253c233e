"""Runs each host of a job as processes of this machine: no Docker, no root, and nothing that outlives this process.

Where user namespaces are allowed, a host has its own ``/opt/ml``, host name, ``/etc/hosts`` and process IDs. Where they
are barred (some containers, Ubuntu's AppArmor), the program gets ``SAGEMAKER_BASE_DIR`` instead, and a warning says so.
Either way a keeper process stands between: see ``keeper.py``.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from estimators.local.executors.executor import HostSpec, HostStartError

logger = logging.getLogger(__name__)

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

    def start(self, host: HostSpec) -> _KeptProcess:
        """Start the host's program in ``/opt/ml/code``.

        Raises:
            HostStartError: If the program can't be started, with the reason.
        """
        ml_root = str(host.ml_root.absolute())
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
            }
        )


class _KeptProcess:
    """A `HostProcess`, through its keeper's pipes."""

    def __init__(self, spec: dict[str, Any]) -> None:
        status, reporting = os.pipe()
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", _KEEPER, str(reporting)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[reporting],
                start_new_session=True,
                cwd="/",
                bufsize=0,
            )
        finally:
            os.close(reporting)
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._control, self._output = self._keeper.stdin, self._keeper.stdout
        with os.fdopen(status, "rb") as report:
            self._send(json.dumps(spec).encode() + b"\n")
            answer = json.loads(report.read() or b"{}")
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


def _namespaces_are_allowed() -> bool:
    with tempfile.TemporaryDirectory(prefix="smddp-probe-") as directory:
        root = Path(directory)
        (root / "code").mkdir()
        spec = HostSpec(
            name="algo-1",
            address="127.0.0.1",
            ml_root=root,
            argv=("true",),
            environment={"PATH": os.environ.get("PATH", os.defpath)},
            hosts={"algo-1": "127.0.0.1"},
        )
        try:
            host = ProcessExecutor(isolated=True).start(spec)
        except HostStartError as error:
            logger.warning(
                "jobs run without an /opt/ml and host names of their own, with SAGEMAKER_BASE_DIR and loopback "
                "addresses instead, because user namespaces are barred here (%s)",
                error,
            )
            return False
        with host.output:
            host.wait()
        return True
