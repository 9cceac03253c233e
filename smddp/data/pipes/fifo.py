"""Opens and reads the named pipe of an epoch, with a bound on every wait."""

from __future__ import annotations

import io
import os
import select
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smddp.errors import DataError

_PIECE_SECONDS = 0.1
"""How long a read waits before it checks `is_abandoned` again."""


def open_pipe(path: Path, *, wait_seconds: float, is_abandoned: Callable[[], bool] = lambda: False) -> io.RawIOBase:
    """Wait until the platform's named pipe exists and has a writer, and open it.

    ``wait_seconds`` bounds the wait for the pipe, and later each wait for data; DataError ends both. Once
    ``is_abandoned`` returns True, reads return the end.
    """
    deadline = time.monotonic() + wait_seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise DataError(
                f"{path} did not come within {wait_seconds:.0f} s: is the channel in Pipe mode, and does nobody else "
                "read its pipes?"
            )
        if is_abandoned():
            return io.BytesIO()  # type: ignore[return-value]
        time.sleep(0.01)
    if not stat.S_ISFIFO(path.stat().st_mode):
        raise DataError(f"{path} is no named pipe, so this channel is not in Pipe mode: read it as files")
    return _Pipe(path, wait_seconds, is_abandoned)


class _Pipe(io.RawIOBase):
    def __init__(self, path: Path, wait_seconds: float, is_abandoned: Callable[[], bool]) -> None:
        super().__init__()
        self._path = path
        self._wait_seconds = wait_seconds
        self._is_abandoned = is_abandoned
        # Without O_NONBLOCK, open would wait for a writer without a bound. Reads wait with poll() instead, which does
        # not report the end of the pipe before a first writer opened it.
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._ready = select.poll()
        self._ready.register(self._pipe, select.POLLIN)
        try:
            self._wait()
        except DataError:
            self.close()
            raise

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._wait():
            return 0
        try:
            return os.readv(self._pipe, [buffer])
        except BlockingIOError as error:
            raise DataError(f"another process reads {self._path} too: each byte reaches but one of them") from error

    def close(self) -> None:
        if not self.closed:
            os.close(self._pipe)
        super().close()

    def _wait(self) -> bool:
        """Wait for data or the end, at most `wait_seconds`; return False if the records are no longer wanted."""
        deadline = time.monotonic() + self._wait_seconds
        while not self._ready.poll(_PIECE_SECONDS * 1000):
            if self._is_abandoned():
                return False
            if time.monotonic() > deadline:
                raise DataError(
                    f"nothing came through {self._path} for {self._wait_seconds:.0f} s; see the platform's log, or "
                    "raise wait_seconds"
                )
        return True
