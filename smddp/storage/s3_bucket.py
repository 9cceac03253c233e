"""One bucket of S3: every request to it, and the bytes of its objects. Checkpoints and streamed data go through it.

Each request is retried by one policy (`smddp.storage.s3_retries`). The client asks once, and belongs to one process:
it is not shared over a fork, nor are the locks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from botocore.exceptions import ClientError, IncompleteReadError

from smddp.storage.parallel import in_parallel
from smddp.storage.s3_client import connect
from smddp.storage.s3_errors import MISSING, S3_ERRORS, Refusal, code_of, explain, is_missing
from smddp.storage.s3_retries import Cancelled, Retries

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef, GetObjectRequestTypeDef

T = TypeVar("T")

PART_SIZE = 8 * 2**20
"""Bytes of a request. Larger ones are no faster, fill the server's memory, and are sent again whole if they fail."""
CONNECTIONS = 10
"""Requests at a time. One connection to AWS carries some 90 MB/s, whatever the network; and each rank that writes, or
host that reads, has as many."""
PATIENCE = 120.0
"""Seconds without a byte after which S3 is given up."""

_BLOCK = 2**18  # bytes that are read at a time
_PAST_THE_END = {"InvalidRange", "416"}
_OF_ANOTHER_VERSION = {*_PAST_THE_END, "PreconditionFailed", "412"}
_MARKERS: Mapping[str, Mapping[str, str]] = {
    "list_objects_v2": {"ContinuationToken": "NextContinuationToken"},
    "list_multipart_uploads": {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"},
}
"""For each operation that lists: what the next request says, and where the answer gives it."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Version:
    """Which bytes an object has: all that is read of it is of the same."""

    etag: str
    """As S3 gives it, with its quotes."""
    size: int
    """Bytes of the whole object."""


class ReplacedError(Exception):
    """An object is not the version any more that was asked for."""


class TooLargeError(Exception):
    """An object has more bytes than are read at once."""


class S3Bucket:
    """Asks a bucket, and reads its objects. Safe among threads, and over a fork."""

    def __init__(
        self,
        name: str,
        *,
        advice: Mapping[str, str],
        failure: Callable[[Refusal], Exception],
        connections: int = CONNECTIONS,
        part_size: int = PART_SIZE,
        client: S3Client | None = None,
        timeout: float = 30.0,
        patience: float = PATIENCE,
    ) -> None:
        """Say which; nothing is asked of S3 yet.

        Args:
            name: the bucket's.
            advice: what to do about a refusal where that depends on what was tried, by S3's code.
            failure: makes the exception to raise of what S3 did not do.
            connections: ranges and parts that are under way at a time at most.
            part_size: bytes of a request; what is larger goes and comes in several.
            client: boto3's. Default: each process makes one by `smddp.storage.s3_client.connect`.
            timeout: seconds until S3 must answer, and until the next bytes of the answer must come.
            patience: seconds without a byte, and with an error again and again, until S3 is given up.
        """
        self.name = name
        self.advice = advice
        self.failure = failure
        self.connections = connections
        self.part_size = part_size
        self._given_client = client
        self._timeout = timeout
        self._patience = patience
        self._state: _State | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the client behind."""
        return {**self.__dict__, "_state": None}

    def uri(self, key: str) -> str:
        """Give the location of an object."""
        return f"s3://{self.name}/{key}"

    @overload
    def ask(self, doing: str, call: Callable[[S3Client], T]) -> T: ...
    @overload
    def ask(self, doing: str, call: Callable[[S3Client], T], *, none_if: Collection[str]) -> T | None: ...
    def ask(self, doing: str, call: Callable[[S3Client], T], *, none_if: Collection[str] = ()) -> T | None:
        """Make a request until S3 answers it.

        Args:
            doing: what fails if it fails: ``could not write s3://bucket/key``.
            call: makes it. It is called again where S3 did not answer, and must be the same request then.
            none_if: S3's codes that are an answer too.

        Returns:
            What the call returned; None where S3 answered with one of those codes.

        Raises:
            Exception: `failure`: S3 refused, or did not answer for too long.
        """
        retries = self._retries(doing)
        try:
            return retries.ask(lambda: call(self._here().client))
        except S3_ERRORS as error:
            if code_of(error) in none_if:
                return None
            raise self._given_up(doing, error, retries) from error

    def pages(self, doing: str, operation: str, **parameters: Any) -> Iterator[Any]:
        """Give the answers of an operation that lists, a request a page."""
        while True:
            answer = self.ask(doing, lambda client: getattr(client, operation)(Bucket=self.name, **parameters))
            yield answer
            if not answer["IsTruncated"]:
                return
            parameters.update({name: answer[found] for name, found in _MARKERS[operation].items()})

    def version(self, key: str, *, doing: str) -> Version | None:
        """Give the version of an object, and with it the size; None if it is missing."""

        def look(client: S3Client) -> Version:
            try:
                answer = client.head_object(Bucket=self.name, Key=key)
                return Version(etag=answer["ETag"], size=answer["ContentLength"])
            except ClientError as error:
                if code_of(error).isdigit() and not is_missing(error):
                    # What answers a HEAD has no body, and so no reason; what answers this has.
                    client.get_object(Bucket=self.name, Key=key, Range="bytes=0-0")["Body"].close()
                raise

        return self.ask(doing, look, none_if=MISSING)

    def read_whole(self, key: str, *, largest: int) -> tuple[bytes, str] | None:
        """Read a small object at once.

        Returns:
            Its bytes and its ETag, which belong together; None if it is missing.

        Raises:
            TooLargeError: it is larger than the largest.
        """

        def read(client: S3Client) -> tuple[bytes, str]:
            with self._here().free:
                answer = client.get_object(Bucket=self.name, Key=key)
                size = answer["ContentLength"]
                with closing(answer["Body"]) as body:
                    if size > largest:
                        raise TooLargeError(self.uri(key))
                    content = body.read()
            if len(content) != size:
                raise IncompleteReadError(actual_bytes=len(content), expected_bytes=size)
            return content, answer["ETag"]

        return self.ask(f"could not read {self.uri(key)}", read, none_if=MISSING)

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
            FileNotFoundError: there is no such object.
            ReplacedError: it is not of this version, or was replaced meanwhile.
            Cancelled: it was cancelled.
            Exception: `failure`: S3 did not give it.
        """
        doing = f"could not read {self.uri(key)}"
        retries = self._retries(doing, cancelled)
        wanted, filled, expected = len(memory), 0, version

        def read() -> None:
            nonlocal wanted, filled, expected
            request: GetObjectRequestTypeDef = {
                "Bucket": self.name,
                "Key": key,
                "Range": f"bytes={start + filled}-{start + wanted - 1}",
            }
            if expected:
                request["IfMatch"] = expected.etag  # what was replaced is refused before anything of it is sent
            here = self._here()
            with here.free:
                answer = here.client.get_object(**request)
                with closing(answer["Body"]) as body:
                    found = self._version_of(answer, start + filled, doing)
                    if expected is not None and found != expected:
                        raise ReplacedError(self.uri(key))
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
                raise FileNotFoundError(self.uri(key)) from error
            if code in _PAST_THE_END and version is None and filled == 0:
                return 0  # it ends before, or is empty
            if code in _OF_ANOTHER_VERSION:
                raise ReplacedError(self.uri(key)) from error
            raise self._given_up(doing, error, retries) from error
        return filled

    def fill_in_parallel(self, key: str, start: int, memory: memoryview, version: Version | None = None) -> int:
        """Fill memory as `fill` does, in several ranges at a time. Each is of one version; all are, if that is given.

        Returns:
            The count of bytes, as far as the object goes.
        """
        flat = memory.cast("B")
        ranges = range(0, len(flat), self.part_size)
        calls = [
            partial(self.fill, key, start + begin, flat[begin : begin + self.part_size], version) for begin in ranges
        ]
        return sum(in_parallel(calls, threads=self.connections))

    def connect(self, doing: str) -> None:
        """Make this process's client now, to find out whether the AWS configuration is possible."""
        try:
            self._here()
        except S3_ERRORS as error:
            raise self.failure(explain(doing, error, self.advice)) from error

    @property
    def free(self) -> threading.BoundedSemaphore:
        """What is held while bytes are under way."""
        return self._here().free

    def _retries(self, doing: str, cancelled: Callable[[], bool] = lambda: False) -> Retries:
        return Retries(lambda error: explain(doing, error, self.advice), seconds=self._patience, cancelled=cancelled)

    def _given_up(self, doing: str, error: Exception, retries: Retries) -> Exception:
        refused = explain(doing, error, self.advice)
        if refused.transient:
            refused = Refusal(message=f"{refused.message} (asked again for {retries.waited:.0f} s)", transient=True)
        return self.failure(refused)

    def _version_of(self, answer: GetObjectOutputTypeDef, start: int, doing: str) -> Version:
        """Read ``bytes 0-99/1234``."""
        given = answer.get("ContentRange", "")
        unit, _, total = given.rpartition("/")
        if not unit.startswith(f"bytes {start}-") or not total.isdecimal():
            message = (
                f"{doing}: the server did not give the range that was asked for, but {given!r}; check "
                "AWS_ENDPOINT_URL_S3: the server, or a proxy before it, must know Range"
            )
            raise self.failure(Refusal(message=message, transient=False))
        return Version(etag=answer.get("ETag", ""), size=int(total))

    def _here(self) -> _State:
        """Give what this process has. Two threads may make one each at first: that costs a moment, nothing else."""
        if self._state is None or self._state.process != os.getpid():
            client = self._given_client or connect(timeout=self._timeout)
            self._state = _State(process=os.getpid(), client=client, free=threading.BoundedSemaphore(self.connections))
        return self._state


@dataclass(kw_only=True, slots=True, frozen=True)
class _State:
    """What belongs to one process."""

    process: int
    client: S3Client
    free: threading.BoundedSemaphore
