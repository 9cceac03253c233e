"""One bucket of S3, and every request to it: those of checkpoints and those of streamed data.

Each request is retried by one policy (`smddp.storage.s3_retries`). The client asks once, and belongs to one process:
it is not shared over a fork, nor are the locks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from botocore.exceptions import ClientError

from smddp.storage.s3_client import connect
from smddp.storage.s3_errors import MISSING, S3_ERRORS, Refusal, code_of, explain, is_missing
from smddp.storage.s3_retries import Retries

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

PART_SIZE = 8 * 2**20
"""Bytes of a request. Larger ones are no faster, fill the server's memory, and are sent again whole if they fail."""
CONNECTIONS = 10
"""Requests at a time. One connection to AWS carries some 90 MB/s, whatever the network; and each rank that writes, or
host that reads, has as many."""
PATIENCE = 120.0
"""Seconds without a byte after which S3 is given up."""

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


class S3Bucket:
    """Ask a bucket. Safe among threads, and over a fork."""

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
            name: The bucket's.
            advice: What to do about a refusal where that depends on what was tried, by S3's code.
            failure: Makes the exception to raise of what S3 did not do.
            connections: Ranges and parts that are under way at a time at most.
            part_size: Bytes of a request; what is larger goes and comes in several.
            client: boto3's. Default: each process makes one by `smddp.storage.s3_client.connect`.
            timeout: Seconds until S3 must answer, and until the next bytes of the answer must come.
            patience: Seconds without a byte, and with an error again and again, until S3 is given up.
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
        """Return the location of an object."""
        return f"s3://{self.name}/{key}"

    @overload
    def ask(self, doing: str, call: Callable[[S3Client], T]) -> T: ...
    @overload
    def ask(self, doing: str, call: Callable[[S3Client], T], *, none_if: Collection[str]) -> T | None: ...
    def ask(self, doing: str, call: Callable[[S3Client], T], *, none_if: Collection[str] = ()) -> T | None:
        """Make a request until S3 answers it.

        Args:
            doing: What fails if it fails: ``could not write s3://bucket/key``.
            call: Makes it. It is called again where S3 did not answer, and must be the same request then.
            none_if: S3's codes that are an answer too.

        Returns:
            What the call returned; None where S3 answered with one of those codes.

        Raises:
            Exception: `failure`: S3 refused, or did not answer for too long.
        """
        retries = self.retries(doing)
        try:
            return retries.ask(lambda: call(self.client))
        except S3_ERRORS as error:
            if code_of(error) in none_if:
                return None
            raise self.given_up(doing, error, retries) from error

    def pages(self, doing: str, operation: str, **parameters: Any) -> Iterator[Any]:
        """Return the answers of an operation that lists, a request a page."""
        while True:
            answer = self.ask(doing, lambda client: getattr(client, operation)(Bucket=self.name, **parameters))
            yield answer
            if not answer["IsTruncated"]:
                return
            parameters.update({name: answer[found] for name, found in _MARKERS[operation].items()})

    def version(self, key: str, *, doing: str) -> Version | None:
        """Return the version of an object, and with it the size; None if it is missing."""

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

    def connect(self, doing: str) -> None:
        """Make this process's client now, to find out whether the AWS configuration is possible."""
        try:
            self._here()
        except S3_ERRORS as error:
            raise self.failure(explain(doing, error, self.advice)) from error

    @property
    def client(self) -> S3Client:
        """That of this process."""
        return self._here().client

    @property
    def free(self) -> threading.BoundedSemaphore:
        """What is held while bytes are under way."""
        return self._here().free

    def retries(self, doing: str, cancelled: Callable[[], bool] = lambda: False) -> Retries:
        """Begin with one request; `given_up` makes the exception to raise of what comes out of it."""
        return Retries(lambda error: explain(doing, error, self.advice), seconds=self._patience, cancelled=cancelled)

    def given_up(self, doing: str, error: Exception, retries: Retries) -> Exception:
        """Make the exception to raise of the last error of S3."""
        refused = explain(doing, error, self.advice)
        if refused.transient:
            refused = Refusal(message=f"{refused.message} (asked again for {retries.waited:.0f} s)", transient=True)
        return self.failure(refused)

    def _here(self) -> _State:
        """Return what this process has. Two threads may make one each at first: that costs a moment, nothing else."""
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
