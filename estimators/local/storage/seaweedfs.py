"""SeaweedFS: a real S3 on disk, in one child process that never outlives this one.

Its S3 endpoint demands the platform's own key pair. Its inner components listen on 127.0.0.1 as well: they demand
random tokens, or have their HTTP interface switched off, so that neither a web page nor a neighbour gets past S3.
"""

from __future__ import annotations

import ctypes
import fcntl
import http.client
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from estimators.local.api.signature import KeyPair
from estimators.local.errors import INSTALL, LocalPlatformError

_COMPONENTS = ("master", "volume", "filer", "s3", "admin")
_GRPC_OFFSET = 10_000  # SeaweedFS puts a component's gRPC port this far above its HTTP port
_START_SECONDS = 30.0
_STOP_SECONDS = 3.0  # it has put everything away by then, and may wait 30 s for idle connections of its own
_MOST_VOLUMES = 10_000
_PR_SET_PDEATHSIG = 1


class SeaweedFS:
    """An S3 server whose objects lie in `data`, and everything else of it in `run`."""

    def __init__(self, *, data: Path, run: Path, keys: KeyPair) -> None:
        self._data = data
        self._run = run
        self._keys = keys
        self._log = run / "seaweedfs.log"
        self._lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = _free_ports()

    @property
    def endpoint_url(self) -> str:
        """Where its S3 answers."""
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def pid(self) -> int:
        """Its process id, once it is launched."""
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start the process without waiting for it. Call it in the main thread: the process ends with the thread.

        Raises:
            LocalPlatformError: SeaweedFS is not installed, or its data are in use.
        """
        beside_python = str(Path(sys.executable).parent)  # a virtual environment need not be activated
        program = shutil.which("weed", path=os.pathsep.join([beside_python, *os.get_exec_path()]))
        if program is None:
            raise LocalPlatformError(f"SeaweedFS (`weed`), which keeps the objects on disk, is missing. {INSTALL}")
        self._data.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self._data)
        identity = {
            "name": "smddp",
            "credentials": [{"accessKey": self._keys.access_key, "secretKey": self._keys.secret_key}],
            "actions": ["Admin"],
        }
        configuration = self._run / "seaweedfs.json"
        configuration.touch(mode=0o600)
        configuration.write_text(json.dumps({"identities": [identity]}))
        tokens = {
            f"WEED_JWT_{name}_KEY": secrets.token_hex(32)
            for name in ("SIGNING", "SIGNING_READ", "FILER_SIGNING", "FILER_SIGNING_READ")
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "WEED_"))}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-logtostderr=true", "mini", *self._options(configuration)],
                cwd=self._run,
                env={**environment, **tokens},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def wait_until_ready(self) -> None:
        """Return once S3 answers.

        Raises:
            LocalPlatformError: It ended, or does not answer in time; with the last lines of its log.
        """
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(self._ports["s3"]):
            if self._process.poll() is not None or time.monotonic() > deadline:
                lines = self._log.read_text(errors="replace").splitlines()[-10:]
                raise LocalPlatformError("SeaweedFS did not start. The end of its log:\n" + "\n".join(lines))
            time.sleep(0.02)

    def close(self) -> None:
        """End the process, and remove the sockets that it may leave in /tmp."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            for component, port in self._ports.items():
                Path(f"/tmp/seaweedfs-{component}-grpc-{port + _GRPC_OFFSET}.sock").unlink(missing_ok=True)  # noqa: S108
        if self._lock is not None:
            self._lock.close()

    def _options(self, configuration: Path) -> list[str]:
        ports = [f"-{component}.port={port}" for component, port in self._ports.items()]
        grpc_ports = [f"-{component}.port.grpc={port + _GRPC_OFFSET}" for component, port in self._ports.items()]
        return [
            f"-dir={self._data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *ports,
            *grpc_ports,
            f"-s3.config={configuration}",
            "-s3.autoCreateBucket=false",
            f"-s3.allowedOrigins={self.endpoint_url}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.localSocket=s3.sock",
            "-filer.localSocket=filer.sock",
            f"-filer.allowedOrigins={self.endpoint_url}",
            "-disableHttp=true",
            "-admin.ui=false",
            "-webdav=false",
            # By itself it counts a GiB of the free disk for each volume, and a bucket takes one at least: the disk of a
            # laptop would be full with fifty empty buckets.
            f"-volume.max={_MOST_VOLUMES}",
            "-volume.preStopSeconds=0",
            "-master.telemetry=false",
        ]


def _free_ports() -> dict[str, int]:
    """A port for each component, with its gRPC port, below the range that the kernel hands out by itself."""
    for _ in range(100):
        first = random.randrange(10_000, 22_000)  # noqa: S311 - any free ones will do
        ports = {component: first + index for index, component in enumerate(_COMPONENTS)}
        if all(_is_free(port) and _is_free(port + _GRPC_OFFSET) for port in ports.values()):
            return ports
    raise LocalPlatformError("No ten free ports between 10000 and 32000 on 127.0.0.1 for SeaweedFS.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def _lock(data: Path) -> IO[str]:
    """Hold the directory, so that two platforms never write the same data."""
    lock = (data / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise LocalPlatformError(f"{data} is in use by another local platform: stop it, or choose another.") from error
    return lock


def _die_with_parent() -> None:
    """Ask the kernel for SIGKILL: what S3 has confirmed is written, and SIGTERM may hang."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
