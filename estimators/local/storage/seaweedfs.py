"""SeaweedFS: a real S3 on disk that is started again when it dies, and never outlives this process.

It demands the platform's own key pair, and is reached by one socket in a directory that is closed to other users, so
that nobody can take its place while it is away. See `SeaweedFSProcess` for what keeps others from its components.
"""

from __future__ import annotations

import fcntl
import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from estimators.local.api.signature import KeyPair
from estimators.local.directory_reaper_process import Lifeline
from estimators.local.errors import LocalPlatformError, StorageEndedError
from estimators.local.executors import HostStartError, why_no_namespaces
from estimators.local.private_directory import LOCK, make_private
from estimators.local.storage.seaweedfs_process import SeaweedFSProcess, find_program, write_configuration
from estimators.local.storage.socket_connection import SocketConnection

logger = logging.getLogger(__name__)

_START_SECONDS = 30.0
_PAUSES = (0.0, 1.0, 4.0)
"""Seconds before each restart, of which there are as many: what kills it within milliseconds may pass in a moment."""
_STEADY_SECONDS = 60.0
"""A run that was as long is no failed start: the restarts are counted from 0 again."""
_POLL_SECONDS = 0.02
_RELEASE_SECONDS = 2.0


class SeaweedFS:
    """An S3 server whose objects lie in `data`, and everything else of it in `run`.

    Args:
        data: Made if missing, and closed to other users.
        run: A directory that only this process's user may read.
        keys: What its S3 demands.
        isolated: Whether to run it in namespaces of its own, where they are allowed.
        lifeline: Of the directory that it runs in: it stays open until it has ended.
    """

    def __init__(
        self, *, data: Path, run: Path, keys: KeyPair, isolated: bool = True, lifeline: Lifeline | None = None
    ) -> None:
        self._data = data
        self._directory = run / "seaweedfs"
        self._log = run / "seaweedfs.log"
        self._keys = keys
        self._isolated = isolated
        """Settled by `launch`, once for all restarts: what was out of others' reach never comes into it."""
        self._lifeline = lifeline
        self._lock: IO[str] | None = None
        self._program = ""
        self._process: SeaweedFSProcess | None = None
        self._watcher: threading.Thread | None = None
        self._closing = threading.Event()
        # Between the watcher, which starts new processes, and `close`, after which there must be none.
        self._starting = threading.Lock()
        self._ended: str | None = None

    @property
    def process(self) -> SeaweedFSProcess:
        """What runs, or ran last."""
        assert self._process is not None
        return self._process

    def launch(self) -> None:
        """Start it without waiting for it.

        Raises:
            LocalPlatformError: SeaweedFS is not installed, can't be started, or its data are in use or somebody else's.
        """
        self._program = find_program()
        make_private(self._data)
        self._lock = _lock(self._data)
        write_configuration(self._directory, self._keys)
        try:
            self._isolated = self._isolated and _has_a_private_network()
            self._process = self._start()
        except (HostStartError, OSError) as error:
            raise LocalPlatformError(f"SeaweedFS did not start: {error}") from error

    def wait_until_ready(self) -> None:
        """Return once S3 answers.

        Raises:
            LocalPlatformError: It ended, or does not answer in time; with the last lines of its log.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(self.process):
            if self.process.wait(0) is not None or time.monotonic() > deadline:
                raise LocalPlatformError("SeaweedFS did not start. The end of its log:\n" + self._last_lines(10))
            time.sleep(_POLL_SECONDS)

    def watch(self, ended: Callable[[str], None]) -> None:
        """From now on, start it again on the same data when it dies.

        Args:
            ended: Called with the reason when it has died so often that it is given up; `connect` raises it then.
        """
        self._watcher = threading.Thread(target=self._watch, args=(ended,), name="storage-watcher", daemon=True)
        self._watcher.start()

    def connect(self) -> socket.socket:
        """Return a connection to S3; while it is started again, wait for it.

        Raises:
            StorageEndedError: It was given up, with the reason.
            OSError: Nobody answers.
        """
        deadline = time.monotonic() + _START_SECONDS
        while True:
            if self._ended is not None:
                raise StorageEndedError(self._ended)
            try:
                return self.process.connect()
            except OSError:
                if self._watcher is None or self._closing.is_set() or time.monotonic() > deadline:
                    raise
            self._closing.wait(_POLL_SECONDS)

    def close(self) -> None:
        """End it."""
        with self._starting:
            self._closing.set()
            if self._process is not None:
                self._process.stop()
        if self._watcher is not None:
            self._watcher.join()
        if self._lock is not None:
            self._lock.close()

    def _start(self) -> SeaweedFSProcess:
        assert self._lock is not None
        with self._log.open("ab") as log:
            return SeaweedFSProcess(
                self._program,
                data=self._data.absolute(),
                directory=self._directory.absolute(),
                log=log,
                isolated=self._isolated,
                lock=self._lock,
                lifeline=self._lifeline,
            )

    def _watch(self, ended: Callable[[str], None]) -> None:
        try:
            self._ended = self._keep_running()
        except Exception as error:
            # Whatever it was: jobs that wait for objects must end, with the reason.
            logger.exception("the storage's watcher failed")
            self._ended = f"SeaweedFS, which keeps the objects, can't be watched any more: {error!r}"
        if self._ended is not None:
            logger.error("%s", self._ended)
            ended(self._ended)

    def _keep_running(self) -> str | None:
        """Start it again whenever it dies; why it is given up, or None once it is closed."""
        restarts = 0
        problem: str | None = None
        while True:
            if problem is None:
                problem, lived = self._await_death()
                restarts = 0 if lived > _STEADY_SECONDS else restarts
            if self._closing.is_set():
                return None
            if restarts == len(_PAUSES):
                return (
                    f"SeaweedFS, which keeps the objects, {problem}, the last of {restarts + 1} failures "
                    f"in a row. The end of its log:\n{self._last_lines(3)}"
                )
            logger.warning(
                "SeaweedFS, which keeps the objects, %s: starting it again, %d of %d times",
                problem,
                restarts + 1,
                len(_PAUSES),
            )
            self._closing.wait(_PAUSES[restarts])
            restarts += 1
            problem = self._start_again()

    def _await_death(self) -> tuple[str, float]:
        """Return how it ended, and after how many seconds."""
        began = time.monotonic()
        end = self.process.wait()
        assert end is not None
        self.process.remove_sockets()
        return f"ended with exit code {end.code}", time.monotonic() - began

    def _start_again(self) -> str | None:
        """Start it unless it is closed; what kept it from starting."""
        with self._starting:
            if not self._closing.is_set():
                try:
                    self._process = self._start()
                except Exception as error:  # of whatever kind, it is a failed attempt
                    return f"could not be started again ({error})"
        return None

    def _last_lines(self, most: int) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-most:])


def _has_a_private_network() -> bool:
    why = why_no_namespaces(private_network=True)
    if why is not None:
        logger.warning(
            "the storage's components listen on 127.0.0.1 and demand certificates, because it can't have a network of "
            "its own here: %s",
            why,
        )
    return why is None


def _answers(process: SeaweedFSProcess) -> bool:
    connection = SocketConnection(process.connect)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def _lock(data: Path) -> IO[str]:
    """Hold the directory, so that two platforms never write the same data; one that is just ending has it a moment."""
    lock = (data / LOCK).open("w")
    deadline = time.monotonic() + _RELEASE_SECONDS
    while not _locked(lock):
        if time.monotonic() > deadline:
            lock.close()
            raise LocalPlatformError(
                f"{data} is in use by another local platform: stop it, or choose another directory."
            )
        time.sleep(_POLL_SECONDS)
    return lock


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
