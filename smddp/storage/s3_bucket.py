"""One S3 bucket and every request to it, for checkpoints and for streamed data.

One policy retries each request (`smddp.storage.s3_errors`); boto3 itself does not retry. Client and semaphore belong
to one process: a fork makes its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from smddp.storage.s3_errors import MISSING, S3_ERRORS, Refusal, Retries, code_of, explain, is_missing

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

PART_SIZE = 8 * 2**20
"""Bytes of a request. Larger requests are no faster, take server memory, and are repeated whole after a failure."""
CONNECTIONS = 10
"""Requests at a time, for each writing rank or reading host. One connection to AWS carries about 90 MB/s on any
network."""
PATIENCE = 120.0
"""Seconds without a byte before a request fails."""

_CONNECT_SECONDS = 10.0
_MOST_CONNECTIONS = 64
"""Connections kept open between requests, at most."""

_MARKERS: Mapping[str, Mapping[str, str]] = {
    "list_objects_v2": {"ContinuationToken": "NextContinuationToken"},
    "list_multipart_uploads": {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"},
}
"""For each list operation: the next request's parameters, and the answer's fields with their values."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Version:
    """The version of an object. All ranges of one read must be of the same version."""

    etag: str
    """As S3 returns it, with quotes."""
    size: int
    """Bytes of the whole object."""


class S3Bucket:
    """Sends requests to a bucket. Safe for threads and forks."""

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
        """Configure a bucket, without a request to S3. `failure` makes the exception to raise from a refusal.

        `advice` is by S3's code; `client` defaults to one per process. `connections` bounds the ranges and parts in
        transfer at a time, `part_size` the bytes of a request. `timeout` is the seconds to wait for an answer, and for
        its next bytes; `patience` is the seconds without progress, over all retries, before a request fails.
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
        """Pickle without the client."""
        return {**self.__dict__, "_state": None}

    def uri(self, key: str) -> str:
        """Return the URI of an object."""
        return f"s3://{self.name}/{key}"

    @overload
    def ask(self, doing: str, call: Callable[[S3Client], T]) -> T: ...
    @overload
    def ask(self, doing: str, call: Callable[[S3Client], T], *, none_if: Collection[str]) -> T | None: ...
    def ask(self, doing: str, call: Callable[[S3Client], T], *, none_if: Collection[str] = ()) -> T | None:
        """Make a request, with retries, and return its result; None if S3 answers with one of the codes `none_if`.

        `call` may run several times, and must make the same request each time. Raise `failure` after a refusal or a
        timeout; `doing` is the failed action (``could not write s3://bucket/key``).
        """
        retries = self.retries(doing)
        try:
            return retries.ask(lambda: call(self.client))
        except S3_ERRORS as error:
            if code_of(error) in none_if:
                return None
            raise self.given_up(doing, error, retries) from error

    def pages(self, doing: str, operation: str, **parameters: Any) -> Iterator[Any]:
        """Yield the answers of a list operation, one request per page."""
        while True:
            answer = self.ask(doing, lambda client: getattr(client, operation)(Bucket=self.name, **parameters))
            yield answer
            if not answer["IsTruncated"]:
                return
            parameters.update({name: answer[found] for name, found in _MARKERS[operation].items()})

    def version(self, key: str, *, doing: str) -> Version | None:
        """Return the version and size of an object; None if absent."""

        def look(client: S3Client) -> Version:
            try:
                answer = client.head_object(Bucket=self.name, Key=key)
                return Version(etag=answer["ETag"], size=answer["ContentLength"])
            except ClientError as error:
                if code_of(error).isdigit() and not is_missing(error):
                    # The answer to a HEAD has no body, and so no reason; the answer to this GET has one.
                    client.get_object(Bucket=self.name, Key=key, Range="bytes=0-0")["Body"].close()
                raise

        return self.ask(doing, look, none_if=MISSING)

    def connect(self, doing: str) -> None:
        """Create this process's client now, to raise errors of the AWS configuration early."""
        try:
            self._here()
        except S3_ERRORS as error:
            raise self.failure(explain(doing, error, self.advice)) from error

    @property
    def client(self) -> S3Client:
        """The client of this process."""
        return self._here().client

    @property
    def free(self) -> threading.BoundedSemaphore:
        """The semaphore that limits transfers of ranges and parts in this process to `connections`.

        A transfer takes it inside each try and frees it before a pause, so a failing request does not block others.
        """
        return self._here().free

    def retries(self, doing: str, cancelled: Callable[[], bool] = lambda: False) -> Retries:
        """Return the retries of one request; `given_up` converts its last error to the exception to raise."""
        return Retries(lambda error: explain(doing, error, self.advice), seconds=self._patience, cancelled=cancelled)

    def given_up(self, doing: str, error: Exception, retries: Retries) -> Exception:
        """Convert the last error of a request to the exception to raise."""
        refused = explain(doing, error, self.advice)
        if refused.transient:
            refused = Refusal(message=f"{refused.message} (asked again for {retries.waited:.0f} s)", transient=True)
        return self.failure(refused)

    def _here(self) -> _State:
        """Return this process's state. Without a lock: two threads may each create one at first, which is harmless."""
        if self._state is None or self._state.process != os.getpid():
            client = self._given_client or connect(timeout=self._timeout)
            self._state = _State(process=os.getpid(), client=client, free=threading.BoundedSemaphore(self.connections))
        return self._state


@dataclass(kw_only=True, slots=True, frozen=True)
class _State:
    """The client and semaphore of one process."""

    process: int
    client: S3Client
    free: threading.BoundedSemaphore


def connect(*, timeout: float = 30.0) -> S3Client:
    """Create a client without retries of its own (see `smddp.storage.s3_errors`).

    `timeout` is the seconds to wait for the next bytes, or to send the next mebibyte; connecting takes ten at most.
    Raise BotoCoreError if the AWS configuration is invalid.

    boto3 finds credentials, region and endpoint as usual: in the role, the environment (AWS_REGION,
    AWS_ENDPOINT_URL_S3, AWS_PROFILE) or the configuration files. The AWS CRT is not used: its transfers ignore the
    configured endpoint (boto/boto3#4839), it hangs after a fork, and it is not faster (benchmarks/s3_transfer.py).
    """
    config = Config(
        connect_timeout=min(timeout, _CONNECT_SECONDS),
        read_timeout=timeout,
        retries={"mode": "standard", "total_max_attempts": 1},
        max_pool_connections=_MOST_CONNECTIONS,
        tcp_keepalive=True,
        # Each write carries a CRC32 of our own, and readers verify the bytes by their own digests.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # The SHA-256 of an upload would cost ten times a memory copy.
        s3={"payload_signing_enabled": False},
    )
    # A new session: boto3's default session is not thread-safe.
    return boto3.session.Session().client("s3", config=config)
