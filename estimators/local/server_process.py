"""The parent's handle on the server's process: start it, reach it, end it.

The server has its own process, so that the user's program loads neither moto nor Flask, and its own session, so that
the program decides about Ctrl-C in a terminal.
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
from estimators.local.executors.settings import Docker, Processes, Slurm
from estimators.local.private_directory import keep_out_of_bundles
from smddp.process.inherited import open_closed_streams

logger = logging.getLogger(__name__)

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0


@dataclass(kw_only=True, slots=True, frozen=True)
class ServerSettings:
    """The settings of a server, sent when it starts."""

    run_directory: str
    """Directory of all files that end with the server."""
    storage_directory: str | None
    """Directory of the objects on disk; None keeps them in memory."""
    region: str
    client_directory: str
    """Directory of the files that a client's environment names."""
    port: int
    """Port of the API on 127.0.0.1; 0 takes any free one."""
    s3_port: int
    """Port of S3 for objects on disk; 0 takes any free one."""
    grace_seconds: float
    executor: Docker | Processes | Slurm
    """Runs jobs in containers, as processes of this machine, or on Slurm."""
    keys: KeyPair

    def to_json(self) -> str:
        """Return the settings as one line of JSON."""
        return json.dumps({**asdict(self), "kind": type(self.executor).__name__})

    @classmethod
    def from_json(cls, line: str) -> ServerSettings:
        """Return the settings that `to_json` wrote."""
        fields = json.loads(line)
        kind = {each.__name__: each for each in (Docker, Processes, Slurm)}[fields.pop("kind")]
        return cls(**{**fields, "executor": kind(**fields["executor"]), "keys": KeyPair(**fields["keys"])})


class ServerProcess:
    """A running server. It ends when it is told to, or when this process ends in any way."""

    def __init__(self, settings: ServerSettings) -> None:
        """Start the server and return once it answers.

        Raise LocalPlatformError with the server's reason, or the end of its log, if it can't start.
        """
        self._parent = os.getpid()
        open_closed_streams()  # else the server's own pipes would take the lifeline's number
        self.directory = Path(settings.run_directory)
        self.client_directory = Path(settings.client_directory)
        # 1. The reaper starts before the directory exists, so that a SIGKILL at any moment leaves nothing.
        # 2. The server inherits the lifeline.
        # 3. This process closes its own copy, so that the reaper waits for the server and its children only.
        self._reaper = DirectoryReaperProcess(self.directory)
        try:
            self.directory.mkdir(mode=0o700)
            keep_out_of_bundles(self.directory)
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
        """The process ID of the server, and of its process group."""
        return self._process.pid

    @property
    def is_own(self) -> bool:
        """Whether this process has started the server, and is no fork of that process."""
        return os.getpid() == self._parent

    @property
    def is_running(self) -> bool:
        """Whether the server still runs."""
        return self._process.poll() is None

    def end_of_log(self) -> str:
        """Return the last lines (20 at most) written to the server's log since the previous call."""
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-20:])

    def stop(self) -> None:
        """End the server and all its jobs, and remove its directory; do nothing the second time.

        Raise KeyboardInterrupt after Ctrl-C, however often it came, only when nothing is left.
        """
        interruption: KeyboardInterrupt | None = None
        while True:
            try:
                self._end()
                break
            except KeyboardInterrupt as error:  # each step of `_end` may be repeated, and the longest has a time limit
                interruption = error
        if interruption is not None:
            raise interruption

    def _end(self) -> None:
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
        self._reaper.finish()

    def _tell(self, settings: ServerSettings) -> dict[str, str]:
        """Send the server its settings, and return its answer."""
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
