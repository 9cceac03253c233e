"""The bytes of objects in S3 into memory: resumed where they broke off, and never of two versions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from botocore.exceptions import IncompleteReadError

from smddp.storage.parallel import in_parallel
from smddp.storage.s3_bucket import S3Bucket, Version
from smddp.storage.s3_errors import MISSING, S3_ERRORS, Refusal, code_of
from smddp.storage.s3_retries import Cancelled

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef, GetObjectRequestTypeDef

_BLOCK = 2**20  # bytes that are read at a time: with half of it, checkpoints come a tenth slower
_PAST_THE_END = {"InvalidRange", "416"}
_OF_ANOTHER_VERSION = {*_PAST_THE_END, "PreconditionFailed", "412"}


class ReplacedError(Exception):
    """An object is not the version any more that was asked for."""


class TooLargeError(Exception):
    """An object has more bytes than are read at once."""


class Downloads:
    """Reads objects of one bucket. Safe among threads."""

    def __init__(self, bucket: S3Bucket) -> None:
        """Read from a bucket."""
        self._bucket = bucket

    def read_whole(self, key: str, *, largest: int) -> tuple[bytes, str] | None:
        """Read a small object at once.

        Returns:
            Its bytes and its ETag, which belong together; None if it is missing.

        Raises:
            TooLargeError: It is larger than the largest.
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
        """Fill memory with the bytes of an object from one on, as far as the object goes.

        What a broken answer gave is kept, and the rest asked for again.

        Args:
            key: The object's.
            start: Its first byte that is wanted.
            memory: Where to.
            version: Which it must be; None: any, then that of the first answer.
            answered: Called with the version as soon as S3 has answered, before the bytes are there.
            arrived: Called with the count of bytes that are there, again and again.
            cancelled: Whether nobody wants them any more; asked after each mebibyte.

        Returns:
            The count of bytes.

        Raises:
            FileNotFoundError: There is no such object.
            ReplacedError: It is not of this version, or was replaced meanwhile.
            Cancelled: It was cancelled.
            Exception: `failure`: S3 did not give it.
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
                request["IfMatch"] = expected.etag  # what was replaced is refused before anything of it is sent
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
                return 0  # it ends before, or is empty
            if code in _OF_ANOTHER_VERSION:
                raise ReplacedError(self._bucket.uri(key)) from error
            raise self._bucket.given_up(doing, error, retries) from error
        return filled

    def fill_in_parallel(self, key: str, start: int, memory: memoryview, version: Version | None = None) -> int:
        """Fill memory as `fill` does, in several ranges at a time. Each is of one version; all are, if that is given.

        Returns:
            The count of bytes, as far as the object goes.
        """
        flat, size = memory.cast("B"), self._bucket.part_size
        calls = [
            partial(self.fill, key, start + begin, flat[begin : begin + size], version)
            for begin in range(0, len(flat), size)
        ]
        return sum(in_parallel(calls, threads=self._bucket.connections))

    def _version_of(self, answer: GetObjectOutputTypeDef, start: int, doing: str) -> Version:
        """Read ``bytes 0-99/1234``."""
        given = answer.get("ContentRange", "")
        unit, _, total = given.rpartition("/")
        if not unit.startswith(f"bytes {start}-") or not total.isdecimal():
            message = (
                f"{doing}: the server did not give the range that was asked for, but {given!r}; check "
                "AWS_ENDPOINT_URL_S3: the server, or a proxy before it, must know Range"
            )
            raise self._bucket.failure(Refusal(message=message, transient=False))
        return Version(etag=answer.get("ETag", ""), size=int(total))
