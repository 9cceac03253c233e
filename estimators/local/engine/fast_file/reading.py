"""Reads objects by ranges as a program reads files: ahead of it in a sequence, and else no more than it asks for.

Nothing is copied to disk. What a program has read lies in the kernel's page cache, like that of any file.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from botocore.exceptions import HTTPClientError, IncompleteReadError

from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.objects import S3Object, explaining

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BLOCK = 4 << 20
"""Bytes of a request when a file is read in sequence."""
AHEAD = 2
"""Blocks that are asked for before they are needed."""
_KEPT = AHEAD + 2
"""Blocks of a file that are in memory at a time."""
_TRANSFERS_AT_ONCE = 8
_ATTEMPTS = 5


class Reading:
    """Reads objects for all files of a job.

    Args:
        s3: A client.
        failed: Is told why an object can't be read; the program sees an input/output error.
    """

    def __init__(self, s3: S3Client, *, failed: Callable[[str], None]) -> None:
        self._s3 = s3
        self._failed = failed
        self._pool = ThreadPoolExecutor(_TRANSFERS_AT_ONCE, thread_name_prefix="fast file transfer")
        self._closing = threading.Event()

    def open(self, found: S3Object) -> OpenObject:
        """Open an object; nothing is read yet."""
        return OpenObject(self, found)

    def close(self) -> None:
        """Begin no further transfer."""
        self._closing.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def fetch(self, found: S3Object, start: int, end: int) -> bytes:
        """The bytes from ``start`` to ``end``.

        Raises:
            FailedJobError: If S3 refuses, or breaks off too often, or the object has changed.
        """
        try:
            with explaining("FastFile: data can not be read", found.uri):
                return self._fetch(found, start, end)
        except FailedJobError as error:
            if not self._closing.is_set():
                self._failed(str(error))
            raise

    def fetch_later(self, found: S3Object, start: int, end: int) -> Future[bytes]:
        """`fetch` in the background."""
        return self._pool.submit(self.fetch, found, start, end)

    def _fetch(self, found: S3Object, start: int, end: int) -> bytes:
        """Try a few times; a connection that breaks says nothing of the object."""
        failures = 0
        while True:
            response = self._s3.get_object(
                Bucket=found.uri.bucket, Key=found.uri.key, IfMatch=found.etag, Range=f"bytes={start}-{end - 1}"
            )
            try:
                with contextlib.closing(response["Body"]) as body:
                    data: bytes = body.read()
                return data
            except (HTTPClientError, IncompleteReadError):
                if (failures := failures + 1) == _ATTEMPTS or self._closing.wait(0.05 * 2**failures):
                    raise


class OpenObject:
    """An open file."""

    def __init__(self, reading: Reading, found: S3Object) -> None:
        self._reading = reading
        self._object = found
        self._lock = threading.Lock()
        self._blocks: dict[int, Future[bytes]] = {}
        self._end = 0

    def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes from ``offset`` on, fewer only at the file's end.

        Raises:
            FailedJobError: If they can't be read.
        """
        end = min(offset + size, self._object.size)
        if offset >= end:
            return b""
        first, last = offset // BLOCK, (end - 1) // BLOCK
        with self._lock:
            # The kernel asks in parallel, so almost in order, and leaves out what it has in its cache: small steps
            # ahead are a sequence too.
            in_sequence = 0 <= offset - self._end < BLOCK or first in self._blocks or first - 1 in self._blocks
            self._end = end
            blocks = self._take(first, last) if in_sequence else []
        if not blocks:
            return self._reading.fetch(self._object, offset, end)
        try:
            data = b"".join(block.result() for block in blocks)
        except BaseException:
            self.close()  # the next read tries again
            raise
        return data[offset - first * BLOCK : end - first * BLOCK]

    def close(self) -> None:
        """Forget what was read ahead."""
        with self._lock:
            for block in self._blocks.values():
                block.cancel()
            self._blocks.clear()

    def _take(self, first: int, last: int) -> list[Future[bytes]]:
        """These blocks, and the next ones asked for, once the program has gone from one block to another."""
        beyond = (self._object.size - 1) // BLOCK
        wanted = range(first, min(last + (AHEAD if last else 0), beyond) + 1)
        for number in wanted:
            if number not in self._blocks:
                start = number * BLOCK
                end = min(start + BLOCK, self._object.size)
                self._blocks[number] = self._reading.fetch_later(self._object, start, end)
        taken = [self._blocks[number] for number in range(first, last + 1)]
        for number in sorted(self._blocks)[: -max(_KEPT, len(wanted))]:
            del self._blocks[number]
        return taken
