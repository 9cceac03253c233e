"""The parent's handle on the server's process: start it, know how to reach it, end it.

The server runs in a process of its own so that the user's program loads neither moto nor Flask, and in a session of
its own so that Ctrl-C in a terminal is the program's to decide.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from estimators.local.access import Access
from estimators.local.api.signature import KeyPair
from estimators.local.errors import LocalPlatformError
from estimators.local.executors.docker import Docker

logger = logging.getLogger(__name__)

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0


@dataclass(kw_only=True, slots=True, frozen=True)
class ServerSettings:
    """What a server is told when it starts."""

    run_directory: str
    """For everything that ends with the server."""
    storage_directory: str | None
    """For the objects, on disk; None keeps them in memory."""
    region: str
    client_directory: str
    """For the files that a client's environment names."""
    port: int
    """0: any free one."""
    s3_port: int
    """Likewise, of objects on disk."""
    grace_seconds: float
    docker: Docker | None
    """How jobs run in containers; None: they are processes."""
    keys: KeyPair

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> ServerSettings:
        """The settings that `to_json` wrote."""
        fields = json.loads(line)
        docker = fields["docker"] and Docker(**fields["docker"])
        return cls(**{**fields, "docker": docker, "keys": KeyPair(**fields["keys"])})


class ServerProcess:
    """A running server. It ends when it is told to, or when this process does, however that happens."""

    def __init__(self, settings: ServerSettings) -> None:
        """Start the server, and return once it answers.

        Raises:
            LocalPlatformError: It could not start, with the reason or the last lines of its log.
        """
        self.directory = Path(settings.run_directory)
        self.client_directory = Path(settings.client_directory)
        self._log = self.directory / "server.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "estimators.local.serve"],
                cwd=self.directory,  # so that no module of the user's shadows one of ours
                env={name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            answer = self._tell(settings)
        except BaseException:
            self.stop()
            raise
        self.access = Access(
            endpoint_url=answer["endpoint_url"],
            s3_endpoint_url=answer["s3_endpoint_url"],
            keys=settings.keys,
            region=settings.region,
        )

    @property
    def pid(self) -> int:
        """The server's process id, and that of its process group."""
        return self._process.pid

    def stop(self) -> None:
        """End the server and all that it runs, and remove its directory. Does nothing the second time."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.terminate()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("The local platform did not end within %.0f s of SIGTERM: killing it", _STOP_SECONDS)
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _tell(self, settings: ServerSettings) -> dict[str, str]:
        """Tell the server what to do, and return its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{settings.to_json()}\n".encode())
            self._process.stdin.flush()
        readable, _, _ = select.select([self._process.stdout], [], [], _START_SECONDS)
        line = self._process.stdout.readline() if readable else b""
        if not line:
            lines = self._log.read_text(errors="replace").splitlines()[-20:]
            raise LocalPlatformError("The local platform did not start. The end of its log:\n" + "\n".join(lines))
        answer: dict[str, str] = json.loads(line)
        if "error" in answer:
            raise LocalPlatformError(answer["error"])
        return answer
