"""SeaweedFS: a real S3 on disk that is restarted when it dies, and never outlives this process.

It demands the platform's own key pair, and listens on one socket in a directory closed to other users, so that nobody
can take its place while it is down. `SeaweedFSProcess` says what protects its components.
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
from estimators.local.storage.gateway import SocketConnection
from estimators.local.storage.seaweedfs_process import SeaweedFSProcess, find_program, write_configuration

logger = logging.getLogger(__name__)

_START_SECONDS = 30.0
_PAUSES = (0.0, 1.0, 4.0)
"""Seconds before each restart, one entry per restart: a fault that kills it within milliseconds may pass in a
moment."""
_STEADY_SECONDS = 60.0
"""A longer run resets the count of restarts."""
_POLL_SECONDS = 0.02
_RELEASE_SECONDS = 2.0
"""Time in which a platform that is just ending unlocks its data. A start on a directory in use waits as long."""


class SeaweedFS:
    """An S3 server with its objects in ``data``, and all its other files in ``run``.

    ``data`` is made if missing, and closed to other users; only this process's user may read ``run``. ``isolated`` asks
    for namespaces of its own, where they are allowed. ``lifeline`` is ``run``'s, and stays open until SeaweedFS ends.
    """

    def __init__(
        self, *, data: Path, run: Path, keys: KeyPair, isolated: bool = True, lifeline: Lifeline | None = None
    ) -> None:
        self._data = data
        self._directory = run / "seaweedfs"
        self._log = run / "seaweedfs.log"
        self._keys = keys
        self._isolated = isolated
        """Decided by `launch`, once for all restarts: an isolated SeaweedFS never restarts within others' reach."""
        self._lifeline = lifeline
        self._lock: IO[str] | None = None
        self._program = ""
        self._process: SeaweedFSProcess | None = None
        self._watcher: threading.Thread | None = None
        self._closing = threading.Event()
        # Guards the start of a process against `close`: both check or set `_closing` under it, so that no process
        # starts after `close`. One start or one stop bounds the wait.
        self._starting = threading.Lock()
        self._ended: str | None = None

    @property
    def process(self) -> SeaweedFSProcess:
        """The process that runs, or ran last."""
        assert self._process is not None
        return self._process

    def launch(self) -> None:
        """Start SeaweedFS without waiting until it answers.

        Raise LocalPlatformError if it is not installed or can't start, or its data are in use or another user's.
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

        Raise LocalPlatformError with the last lines of the log if SeaweedFS ends, or does not answer in time.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(self.process):
            if self.process.wait(0) is not None or time.monotonic() > deadline:
                raise LocalPlatformError("SeaweedFS did not start. The end of its log:\n" + self._last_lines(10))
            time.sleep(_POLL_SECONDS)

    def watch(self, ended: Callable[[str], None]) -> None:
        """From now on, restart SeaweedFS on the same data when it dies.

        After too many deaths it is given up: ``ended`` is called with the reason, and `connect` raises it from then on.
        """
        self._watcher = threading.Thread(target=self._watch, args=(ended,), name="storage-watcher", daemon=True)
        self._watcher.start()

    def connect(self) -> socket.socket:
        """Return a connection to S3; wait while it restarts, for `_START_SECONDS` at most.

        Raise StorageEndedError with the reason if it was given up, OSError if nobody answers.
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
        """End SeaweedFS and the watcher, and unlock the data."""
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
            # After any error, jobs that wait for objects must end, with the reason.
            logger.exception("the storage's watcher failed")
            self._ended = f"SeaweedFS, which keeps the objects, can't be watched any more: {error!r}"
        if self._ended is not None:
            logger.error("%s", self._ended)
            ended(self._ended)

    def _keep_running(self) -> str | None:
        """Restart SeaweedFS whenever it dies; return why it is given up, or None once it is closed."""
        restarts = 0
        # 1. Wait until the process dies. A restart that fails counts as a death, without a wait.
        # 2. Give up after as many restarts in a row as there are pauses. A run over `_STEADY_SECONDS` resets the count.
        # 3. `close` cuts a pause short, and no process starts after it.
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
        """Return how the process ended, and after how many seconds."""
        began = time.monotonic()
        end = self.process.wait()
        assert end is not None
        self.process.remove_sockets()
        return f"ended with exit code {end.code}", time.monotonic() - began

    def _start_again(self) -> str | None:
        """Start a process unless SeaweedFS is closed; return the error, or None."""
        with self._starting:
            if not self._closing.is_set():
                try:
                    self._process = self._start()
                except Exception as error:  # any error is a failed attempt
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
    """Lock the data, so that two platforms never write the same.

    A platform that is just ending locks them a moment longer: wait for it, `_RELEASE_SECONDS` at most. The supervisor
    of SeaweedFS inherits the lock, so the data stay locked until SeaweedFS has ended.
    """
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
