"""Reads objects by ranges as a program reads files: ahead of it in a sequence, and else no more than it asks for.

Nothing is copied to disk. What a program has read lies in the kernel's page cache, like that of any file.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from botocore.exceptions import HTTPClientError, IncompleteReadError

from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.fast_file.blocks import Blocks
from estimators.local.engine.objects import S3Object, explaining

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BLOCK = 4 << 20
"""Bytes of a request when a file is read in sequence."""
AHEAD = 2
"""Blocks that are asked for before they are needed."""
KEPT_BYTES = 256 << 20
"""Bytes of blocks that are in memory at a time."""
_SEQUENCES = 3
"""Places of an open file from which it can be read in sequence at the same time."""
_TRANSFERS_AT_ONCE = 8
_ATTEMPTS = 5


class Reading:
    """Reads objects for all files of a host.

    Args:
        s3: A client.
        failed: Is told why an object can't be read; the program sees an input/output error.
    """

    def __init__(self, s3: S3Client, *, failed: Callable[[str], None]) -> None:
        self._s3 = s3
        self._failed = failed
        self.blocks = Blocks(KEPT_BYTES)
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
        failures, size = 0, end - start
        while True:
            response = self._s3.get_object(
                Bucket=found.uri.bucket, Key=found.uri.key, IfMatch=found.etag, Range=f"bytes={start}-{end - 1}"
            )
            try:
                with contextlib.closing(response["Body"]) as body:
                    came, data = response.get("ContentLength", size), b""
                    if came == size:  # else it may be a whole object, however large
                        data = body.read()
                        came = len(data)
            except (HTTPClientError, IncompleteReadError):
                if (failures := failures + 1) == _ATTEMPTS or self._closing.wait(0.05 * 2**failures):
                    raise
            else:
                if came != size:
                    raise FailedJobError(
                        f"ClientError: FastFile: data can not be read: {found.uri}: S3 was asked for the {size} bytes "
                        f"from {start} on and sent {came}; ranges of objects must work in it"
                    )
                return data


class OpenObject:
    """An open file."""

    def __init__(self, reading: Reading, found: S3Object) -> None:
        self._reading = reading
        self._object = found
        self._lock = threading.Lock()
        self._ends: deque[int] = deque([0], maxlen=_SEQUENCES)

    def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes from ``offset`` on, fewer only at the file's end.

        Raises:
            FailedJobError: If they can't be read.
        """
        end = min(offset + size, self._object.size)
        if offset >= end:
            return b""
        wanted = range(offset // BLOCK, (end - 1) // BLOCK + 1)
        blocks = self._reading.blocks
        there = blocks.of(self)
        in_sequence = self._goes_on(offset, end)
        if not in_sequence and not there.issuperset(wanted):
            return self._reading.fetch(self._object, offset, end)
        # Who has gone from one block to another will go on.
        ahead = in_sequence and (len(wanted) > 1 or wanted.start - 1 in there)
        later = range(wanted.stop, self._horizon(wanted.stop) if ahead else wanted.stop)
        with blocks.use(self, wanted, later, self._fetch_block) as futures:
            data = b"".join(future.result() for future in futures)
        return data[offset - wanted.start * BLOCK : end - wanted.start * BLOCK]

    def close(self) -> None:
        """Forget what was read ahead."""
        self._reading.blocks.forget(self)

    def _goes_on(self, offset: int, end: int) -> bool:
        """Whether a read goes on where one of the last ones ended.

        The kernel asks in parallel, so almost in order, and leaves out what it has in its cache: small steps ahead are
        a sequence too.
        """
        with self._lock:
            before = next((one for one in self._ends if 0 <= offset - one < BLOCK), None)
            if before is not None:
                self._ends.remove(before)
            self._ends.append(end)
            return before is not None

    def _horizon(self, first: int) -> int:
        """Before which block to end if ``first`` is the first to be asked for ahead."""
        room = self._reading.blocks.room_for_each(BLOCK) - 1
        return min(first + max(0, min(AHEAD, room)), -(-self._object.size // BLOCK))

    def _fetch_block(self, number: int) -> tuple[int, Future[bytes]]:
        start = number * BLOCK
        end = min(start + BLOCK, self._object.size)
        return end - start, self._reading.fetch_later(self._object, start, end)
