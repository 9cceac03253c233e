"""One range of an object into memory: asked for again from where it broke off, and never of two versions."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from botocore.exceptions import IncompleteReadError

from smddp.errors import DataError
from smddp.storage.s3_errors import S3_ERRORS, code_of, explain, is_missing

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectRequestTypeDef

logger = logging.getLogger(__name__)

T = TypeVar("T")

ADVICE = {
    "AccessDenied": (
        "allow the role s3:GetObject and, on the bucket, s3:ListBucket, and the key's kms:Decrypt if there is one"
    ),
    "SlowDown": "S3 limits the rate of requests: put the shards under several prefixes, or read with fewer processes",
}
_BLOCK = 2**18  # bytes that are read at a time
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds
_GLANCE = 0.05  # seconds between two looks whether it was cancelled
_WORTH_SAYING = 1.0  # seconds; shorter pauses are S3's everyday life


@dataclass(kw_only=True, slots=True, frozen=True)
class Version:
    """Which bytes an object has: all parts of one stream are of the same."""

    etag: str
    """As S3 gives it, with its quotes."""
    size: int
    """Bytes of the whole object."""


class Cancelled(Exception):  # noqa: N818 - it is none
    """Nobody wants the bytes any more."""


class RetryPolicy:
    """Asks again for what failed for a while, with pauses that grow, until nothing has come for too long."""

    def __init__(self, doing: str, *, seconds: float, cancelled: Callable[[], bool]) -> None:
        """Be patient with one request.

        Args:
            doing: what fails if it fails: ``could not read s3://bucket/key``.
            seconds: how long to go on without a byte.
            cancelled: whether to end it.
        """
        self._doing = doing
        self._seconds = seconds
        self._cancelled = cancelled
        self.progress()

    def progress(self) -> None:
        """Begin anew: something came."""
        self._since = time.monotonic()
        self._pause = _FIRST_PAUSE

    def ask(self, call: Callable[[], T]) -> T:
        """Call until it succeeds.

        Raises:
            DataError: S3 refused, or did not answer for too long.
            Cancelled: it was cancelled.
        """
        while True:
            try:
                return call()
            except S3_ERRORS as error:  # noqa: PERF203 - a try is nothing beside a request
                self._wait(error)

    def _wait(self, error: Exception) -> None:
        refused = explain(self._doing, error, ADVICE)
        waited = time.monotonic() - self._since
        if not refused.transient and not isinstance(error, IncompleteReadError):
            raise DataError(refused.message) from error
        if waited >= self._seconds:
            raise DataError(f"{refused.message} (asked again for {waited:.0f} s)") from error
        # Random, or all ranks of a job would come again at the same moment.
        pause = random.uniform(0.5, 1.0) * self._pause  # noqa: S311
        logger.log(logging.WARNING if pause >= _WORTH_SAYING else logging.INFO, "%s; asking again", refused.message)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0 and not self._cancelled():
            time.sleep(min(left, _GLANCE))
        if self._cancelled():
            raise Cancelled


@dataclass(kw_only=True, slots=True, frozen=True)
class Ranges:
    """Reads ranges of the objects of one bucket. Safe among threads."""

    client: S3Client
    """One that asks once: how often is asked again is decided here."""
    bucket: str
    patience: float
    """Seconds without a byte after which S3 is given up."""

    def fill(
        self,
        key: str,
        start: int,
        memory: memoryview,
        version: Version | None,
        *,
        answered: Callable[[Version], None],
        arrived: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> int:
        """Fill memory with the bytes of an object from one on, as far as the object goes.

        Args:
            key: the object's.
            start: its first byte that is wanted.
            memory: where to.
            version: which it must be; None: any, then that of the first answer.
            answered: called with the version as soon as S3 has answered, before the bytes are there.
            arrived: called with the count of bytes that are there, again and again.
            cancelled: whether nobody wants them any more; asked after each quarter of a mebibyte.

        Returns:
            The count of bytes.

        Raises:
            DataError: the object is missing, is not of this version, or S3 does not give it.
            Cancelled: it was cancelled.
        """
        uri = f"s3://{self.bucket}/{key}"
        retry = RetryPolicy(f"could not read {uri}", seconds=self.patience, cancelled=cancelled)
        wanted, filled, expected = len(memory), 0, version

        def read() -> None:
            nonlocal wanted, filled, expected
            request: GetObjectRequestTypeDef = {
                "Bucket": self.bucket,
                "Key": key,
                "Range": f"bytes={start + filled}-{start + wanted - 1}",
            }
            if expected:
                request["IfMatch"] = expected.etag  # what was replaced is refused before anything of it is sent
            answer = self.client.get_object(**request)
            with answer["Body"] as body:
                found = _version(answer.get("ContentRange", ""), answer.get("ETag", ""), start + filled, uri)
                if expected is not None and found != expected:
                    raise _changed(uri)
                expected, wanted = found, min(wanted, found.size - start)
                answered(found)
                while filled < wanted:
                    block = memory[filled : min(filled + _BLOCK, wanted)]
                    count = body.readinto(block)  # type: ignore[arg-type] # the stubs want a file
                    if count == 0:
                        raise IncompleteReadError(actual_bytes=filled, expected_bytes=wanted)
                    filled += count
                    retry.progress()
                    arrived(filled)
                    if cancelled():
                        raise Cancelled

        try:
            retry.ask(read)
        except DataError as error:
            cause = error.__cause__
            code = code_of(cause) if isinstance(cause, Exception) else ""
            if code in ("InvalidRange", "416") and version is None and filled == 0:
                return 0  # it ends before, or is empty
            if code in ("InvalidRange", "416", "PreconditionFailed", "412"):
                raise _changed(uri) from cause
            if isinstance(cause, Exception) and is_missing(cause):
                raise DataError(f"{uri} is missing: bring it back, or leave it out of the index") from cause
            raise
        return filled


def _changed(uri: str) -> DataError:
    return DataError(
        f"{uri} was replaced while it was read, and its parts would be of two versions: do not write to the data of a "
        "training that runs; put the object back, or index the shards anew and start the epoch again"
    )


def _version(content_range: str, etag: str, start: int, uri: str) -> Version:
    """Read ``bytes 0-99/1234``."""
    unit, _, total = content_range.rpartition("/")
    if not unit.startswith(f"bytes {start}-") or not total.isdecimal():
        raise DataError(
            f"could not read {uri}: the server did not give the range that was asked for, but {content_range!r}; "
            "check AWS_ENDPOINT_URL_S3: the server, or a proxy before it, must know Range"
        )
    return Version(etag=etag, size=int(total))
