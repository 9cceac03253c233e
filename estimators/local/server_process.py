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
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from estimators.local.access import Access
from estimators.local.api.signature import KeyPair
from estimators.local.directory_reaper_process import DirectoryReaperProcess
from estimators.local.errors import LocalPlatformError
from estimators.local.executors.docker import Docker
from estimators.local.executors.slurm import Slurm

logger = logging.getLogger(__name__)

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_REAP_SECONDS = 5.0
"""For what the server had started to end after it. Networks of Docker's may take longer, and need nothing here."""


@dataclass(kw_only=True, slots=True, frozen=True)
class ServerSettings:
    """What a server is told when it starts."""

    run_directory: str
    """For everything that ends with the server, which makes it."""
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
    executor: Docker | Slurm | None
    """How jobs run elsewhere; None: they are processes of this machine."""
    keys: KeyPair

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps({**asdict(self), "kind": type(self.executor).__name__})

    @classmethod
    def from_json(cls, line: str) -> ServerSettings:
        """Return the settings that `to_json` wrote."""
        fields = json.loads(line)
        kind = {"Docker": Docker, "Slurm": Slurm}.get(fields.pop("kind"))
        executor = None if kind is None else kind(**fields["executor"])
        return cls(**{**fields, "executor": executor, "keys": KeyPair(**fields["keys"])})


class ServerProcess:
    """A running server. It ends when it is told to, or when this process does, however that happens."""

    def __init__(self, settings: ServerSettings) -> None:
        """Start the server, and return once it answers.

        Raises:
            LocalPlatformError: It could not start, with the reason or the last lines of its log.
        """
        self.directory = Path(settings.run_directory)
        self.client_directory = Path(settings.client_directory)
        # The order matters: from the first moment on there is somebody to remove the directory.
        self._reaper = DirectoryReaperProcess(self.directory)
        try:
            self.directory.mkdir(mode=0o700)
            with (self.directory / "server.log").open("ab") as log:
                self._process = self._start(log)
            self._log = (self.directory / "server.log").open("rb")  # it can be read when the file is gone
        finally:
            self._reaper.lifeline.close()
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

    def _start(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        lifeline = self._reaper.lifeline.fileno()
        return subprocess.Popen(
            [sys.executable, "-m", "estimators.local.serve", str(lifeline)],
            cwd=self.directory,  # so that no module of the user's shadows one of ours
            env={name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=[lifeline],
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The server's process id, and that of its process group."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the server has not ended, in order or by a signal."""
        return self._process.poll() is None

    def end_of_log(self) -> str:
        """Return the last lines that were written to its log since this was asked last."""
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-20:])

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
        self._log.close()
        self._reaper.wait()

    def _tell(self, settings: ServerSettings) -> dict[str, str]:
        """Tell the server what to do, and return its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{settings.to_json()}\n".encode())
            self._process.stdin.flush()
        readable, _, _ = select.select([self._process.stdout], [], [], _START_SECONDS)
        line = self._process.stdout.readline() if readable else b""
        if not line:
            raise LocalPlatformError(f"The local platform did not start. The end of its log:\n{self.end_of_log()}")
        answer: dict[str, str] = json.loads(line)
        if "error" in answer:
            raise LocalPlatformError(answer["error"])
        return answer
