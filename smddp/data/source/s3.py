"""The objects below a prefix in S3, read in sequence."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from smddp.data.source.prefetcher import Prefetcher, StreamState
from smddp.data.source.source import Blob, is_temporary, log_left_out
from smddp.errors import DataError
from smddp.storage.s3_bucket import PART_SIZE, PATIENCE, S3Bucket, Version
from smddp.storage.s3_download import Downloads, ReplacedError
from smddp.storage.s3_errors import Refusal

_URI = re.compile(r"s3://(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?", re.DOTALL)
_BUFFER = 1 << 17  # bytes that small reads are served from

_ADVICE = {
    "AccessDenied": (
        "allow the role s3:GetObject and, on the bucket, s3:ListBucket, and the key's kms:Decrypt if there is one"
    ),
    "SlowDown": "S3 limits the rate of requests: put the shards under several prefixes, or read with fewer processes",
}

CONNECTIONS = 16  # one connection to AWS carries some 90 MB/s on any network
MEMORY = CONNECTIONS * PART_SIZE


class S3Source:
    """Shards in S3, read by ranges ahead of the reader and never copied to a disk.

    All streams of one source share its connections and its memory; fifty open streams are fine. A stream reads the
    object's listed version, or, if not listed, the version first opened. An object that is replaced meanwhile raises an
    error, at the latest when the next part is fetched. A broken download continues where it broke off.

    A source may be used before and after a fork, and sent to other processes: each makes its own client and threads.
    A stream belongs to the process that opened it.
    """

    def __init__(
        self,
        uri: str,
        *,
        part_size: int = PART_SIZE,
        connections: int = CONNECTIONS,
        memory: int = MEMORY,
        timeout: float = 15.0,
        patience: float = PATIENCE,
    ) -> None:
        """Use the objects whose keys begin with a prefix and a slash.

        Args:
            uri: ``s3://bucket/prefix``, or ``s3://bucket`` for the whole bucket.
            part_size: Bytes of one request.
            connections: Requests at a time, over all streams.
            memory: Bytes fetched but not yet read, over all streams, besides one part for each stream.
            timeout: Seconds until S3 must answer, and until the next bytes of an answer must arrive.
            patience: Seconds of repeated errors without a byte until reading fails.

        Raises:
            DataError: The URI is not valid, or a number is out of its range.
        """
        match = _URI.fullmatch(uri)
        if match is None:
            raise DataError(f"{uri!r} is no place in S3: expected s3://bucket/prefix")
        for name, value in {"part_size": part_size, "connections": connections, "timeout": timeout}.items():
            if not value > 0:
                raise DataError(f"{name} is {value}: it must be positive")
        if memory < 0 or not patience >= 0:
            raise DataError(f"memory is {memory} and patience {patience}: neither may be negative")
        self._bucket = S3Bucket(
            match["bucket"],
            advice=_ADVICE,
            failure=_data_error,
            connections=connections,
            timeout=timeout,
            patience=patience,
        )
        self._prefix = (match["prefix"] or "").rstrip("/")
        self._part_size, self._connections, self._memory = part_size, connections, memory
        self._versions: dict[str, Version] = {}
        self._here: _Here | None = None

    def __str__(self) -> str:
        """Return the URI."""
        return self._bucket.uri(self._prefix).rstrip("/")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the client and the threads, which stay in this process."""
        return {**self.__dict__, "_here": None}

    def list(self) -> list[Blob]:
        """Return all objects below the prefix, sorted by name. `open` reads these versions from now on."""
        found: dict[str, Version] = {}
        left_out = []
        above = self._key("")
        for page in self._bucket.pages(f"could not list {self}", "list_objects_v2", Prefix=above):
            for entry in page.get("Contents", []):
                name = entry["Key"][len(above) :]
                if not name or name.endswith("/"):  # consoles make "directories"
                    continue
                if is_temporary(name):
                    left_out.append(name)
                else:
                    found[name] = Version(etag=entry["ETag"], size=entry["Size"])
        log_left_out(left_out, self)
        self._versions = found
        return [Blob(name=name, size=version.size) for name, version in sorted(found.items())]

    def open(self, name: str, start: int = 0, size: int | None = None) -> BinaryIO:
        """Begin to fetch an object, and return a stream of its bytes. The stream is not seekable.

        Args:
            name: A name from `list`.
            start: The byte to begin at; at or beyond the object's end, the stream is empty.
            size: The most bytes to read and to fetch; None reads to the end.

        Raises:
            DataError: The name is empty, or the AWS configuration is invalid. Reads raise it for problems with the
                object or the connection.
        """
        if not name or start < 0 or (size is not None and size < 0):
            raise DataError(f"cannot open {name!r} in {self} from byte {start}, {size} bytes: give a name, and counts")
        self._bucket.connect(f"could not read {self}")
        here = self._in_this_process()
        stop = None if size is None else start + size
        key = self._key(name)
        stream = here.prefetcher.start(key, start, stop, self._versions.get(name))
        pin = partial(self._versions.setdefault, name)
        return io.BufferedReader(_Stream(here, stream, self._bucket.uri(key), pin=pin), _BUFFER)

    def _in_this_process(self) -> _Here:
        if self._here is None or self._here.process != os.getpid():
            prefetcher = Prefetcher(
                Downloads(self._bucket), connections=self._connections, memory=self._memory, part_size=self._part_size
            )
            self._here = _Here(process=os.getpid(), prefetcher=prefetcher)
        return self._here

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name


@dataclass(kw_only=True, slots=True, frozen=True)
class _Here:
    """The prefetcher of one process. Threads do not survive a fork, so each process has its own."""

    process: int
    prefetcher: Prefetcher


class _Stream(io.RawIOBase):
    """The bytes of an object as a file."""

    def __init__(self, here: _Here, stream: StreamState, uri: str, *, pin: Callable[[Version], object]) -> None:
        self._here = here
        self._stream = stream
        self._uri = uri
        self._pin = pin

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._here.process != os.getpid():
            raise DataError(
                f"a stream of {self._stream.key} was opened in process {self._here.process} and is read in "
                f"{os.getpid()}: its threads are there; open it where it is read"
            )
        try:
            count = self._here.prefetcher.read_into(self._stream, memoryview(buffer).cast("B"))
        except FileNotFoundError as error:
            raise DataError(f"{self._uri} is missing: bring it back, or leave it out of the index") from error
        except ReplacedError as error:
            raise DataError(
                f"{self._uri} was replaced while it was read, and its parts would be of two versions: do not write to "
                "the data of a training that runs; put the object back, or index the shards anew and start the epoch "
                "again"
            ) from error
        if self._stream.version is not None:
            self._pin(self._stream.version)
        return count

    def close(self) -> None:
        if not self.closed and self._here.process == os.getpid():
            self._here.prefetcher.stop(self._stream)
        super().close()


def _data_error(refused: Refusal) -> DataError:
    return DataError(refused.message)
