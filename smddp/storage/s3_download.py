"""Download S3 objects into memory: resume broken transfers, and never mix two versions of an object."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from botocore.exceptions import IncompleteReadError

from smddp.storage.parallel import in_parallel
from smddp.storage.s3_bucket import S3Bucket, Version
from smddp.storage.s3_errors import MISSING, S3_ERRORS, Cancelled, Refusal, code_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef, GetObjectRequestTypeDef

_BLOCK = 2**20  # bytes per read: half of it makes checkpoints a tenth slower
_PAST_THE_END = {"InvalidRange", "416"}
_OF_ANOTHER_VERSION = {*_PAST_THE_END, "PreconditionFailed", "412"}


class ReplacedError(Exception):
    """An object is no longer the requested version."""


class TooLargeError(Exception):
    """An object has more bytes than allowed."""


class Downloads:
    """Reads objects of one bucket. Thread-safe."""

    def __init__(self, bucket: S3Bucket) -> None:
        """Read from a bucket."""
        self._bucket = bucket

    def read_whole(self, key: str, *, largest: int) -> tuple[bytes, str] | None:
        """Read a small object in one request: its bytes and their ETag; None if absent.

        Raise TooLargeError if it has more than `largest` bytes.
        """

        def read(client: S3Client) -> tuple[bytes, str]:
            with self._bucket.free:
                answer = client.get_object(Bucket=self._bucket.name, Key=key)
                size = answer["ContentLength"]
                with closing(answer["Body"]) as body:
                    if size > largest:
                        raise TooLargeError(self._bucket.uri(key))
                    content = body.read()
            if len(content) != size:
                raise IncompleteReadError(actual_bytes=len(content), expected_bytes=size)
            return content, answer["ETag"]

        return self._bucket.ask(f"could not read {self._bucket.uri(key)}", read, none_if=MISSING)

    def fill(
        self,
        key: str,
        start: int,
        memory: memoryview,
        version: Version | None = None,
        *,
        answered: Callable[[Version], None] = lambda _: None,
        arrived: Callable[[int], None] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> int:
        """Fill memory with the bytes of an object from `start` to the end of either, and return the count.

        Raise FileNotFoundError if the object is absent, ReplacedError if it is not of `version`, Cancelled if
        `cancelled()`, which is checked after each mebibyte, is true.

        Notes on resuming and versions:
          1. Each try asks for the bytes after the last received byte.
          2. The first answer fixes the version, unless `version` does; `If-Match` makes S3 refuse any other.
          3. `answered` is called with the version after each answer, before its bytes; `arrived` after each block with
             the count of bytes so far.
        """
        doing = f"could not read {self._bucket.uri(key)}"
        retries = self._bucket.retries(doing, cancelled)
        wanted, filled, expected = len(memory), 0, version

        def read() -> None:
            nonlocal wanted, filled, expected
            request: GetObjectRequestTypeDef = {
                "Bucket": self._bucket.name,
                "Key": key,
                "Range": f"bytes={start + filled}-{start + wanted - 1}",
            }
            if expected:
                request["IfMatch"] = expected.etag  # S3 refuses a replaced object without sending its bytes
            with self._bucket.free:
                answer = self._bucket.client.get_object(**request)
                with closing(answer["Body"]) as body:
                    found = self._version_of(answer, start + filled, doing)
                    if expected is not None and found != expected:
                        raise ReplacedError(self._bucket.uri(key))
                    expected, wanted = found, min(wanted, found.size - start)
                    answered(found)
                    while filled < wanted:
                        block = memory[filled : min(filled + _BLOCK, wanted)]
                        count = body.readinto(block)  # type: ignore[arg-type] # the stubs want a file
                        if count == 0:
                            raise IncompleteReadError(actual_bytes=filled, expected_bytes=wanted)
                        filled += count
                        retries.progress()
                        arrived(filled)
                        if cancelled():
                            raise Cancelled

        try:
            retries.ask(read)
        except S3_ERRORS as error:
            code = code_of(error)
            if code in MISSING:
                raise FileNotFoundError(self._bucket.uri(key)) from error
            if code in _PAST_THE_END and version is None and filled == 0:
                return 0  # the object ends before `start`, or is empty
            if code in _OF_ANOTHER_VERSION:
                raise ReplacedError(self._bucket.uri(key)) from error
            raise self._bucket.given_up(doing, error, retries) from error
        return filled

    def fill_in_parallel(self, key: str, start: int, memory: memoryview, version: Version | None = None) -> int:
        """Fill memory like `fill`, in several ranges at a time. Without `version`, two ranges may differ in version."""
        flat, size = memory.cast("B"), self._bucket.part_size
        calls = [
            partial(self.fill, key, start + begin, flat[begin : begin + size], version)
            for begin in range(0, len(flat), size)
        ]
        return sum(in_parallel(calls, threads=self._bucket.connections))

    def _version_of(self, answer: GetObjectOutputTypeDef, start: int, doing: str) -> Version:
        """Return the version from an answer, and verify its Content-Range, such as ``bytes 0-99/1234``."""
        given = answer.get("ContentRange", "")
        unit, _, total = given.rpartition("/")
        if not unit.startswith(f"bytes {start}-") or not total.isdecimal():
            message = (
                f"{doing}: the server did not give the range that was asked for, but {given!r}; check "
                "AWS_ENDPOINT_URL_S3: the server, or a proxy before it, must know Range"
            )
            raise self._bucket.failure(Refusal(message=message, transient=False))
        return Version(etag=answer.get("ETag", ""), size=int(total))
