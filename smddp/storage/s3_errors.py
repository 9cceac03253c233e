"""Explain errors of S3 and of the connection, and retry a request after those that pass.

An explanation has the cause, advice, and whether a retry may help. One retry policy serves all requests to AWS.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004 - the base class of botocore's connection errors
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
)
from urllib3.exceptions import HTTPError

logger = logging.getLogger(__name__)

T = TypeVar("T")

S3_ERRORS = (BotoCoreError, ClientError, HTTPError)
"""Errors that a botocore call raises; HTTPError while a body is read over TLS."""

MISSING = frozenset({"NoSuchKey", "404"})
"""S3's codes for an absent object."""

_ADVICE = {
    "NoSuchBucket": "create the bucket (smddp never does), or correct the URI",
    "ExpiredToken": "the credentials expired: renew them, or use a role, whose credentials renew themselves",
    "InvalidAccessKeyId": "the access key is unknown there: correct the credentials, or the endpoint",
    "SignatureDoesNotMatch": "the secret key is wrong: correct AWS_SECRET_ACCESS_KEY or the profile",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION to it",
    "InternalError": "S3 itself failed, several times: try again later",
}
_SAME = {
    "403": "AccessDenied",
    "AllAccessDisabled": "AccessDenied",
    "InvalidToken": "ExpiredToken",
    "RequestExpired": "ExpiredToken",
    "ExpiredTokenException": "ExpiredToken",
    "TokenRefreshRequired": "ExpiredToken",
    "301": "PermanentRedirect",
    "AuthorizationHeaderMalformed": "PermanentRedirect",
    "IllegalLocationConstraintException": "PermanentRedirect",
    "TemporaryRedirect": "PermanentRedirect",
    "500": "InternalError",
    "503": "SlowDown",
    "ServiceUnavailable": "SlowDown",
    "Throttling": "SlowDown",
    "RequestLimitExceeded": "SlowDown",
    "InsufficientStorage": "QuotaExceeded",
    "507": "QuotaExceeded",
}
_TRANSIENT = {"SlowDown", "InternalError", "RequestTimeout", "BadDigest", "IncompleteBody", "OperationAborted"}

_PASSWORD = re.compile(r"//[^/\s]*@")
"""User and password in the URL of an endpoint or proxy. Messages go to logs and to the job's FailureReason."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds
_GLANCE = 0.05  # seconds between two checks for cancellation
_WORTH_SAYING = 1.0  # seconds; shorter pauses are usual with S3, and logged as info


@dataclass(kw_only=True, slots=True, frozen=True)
class Refusal:
    """Why S3 refused a request."""

    message: str
    """The action, S3's answer and advice, in one sentence."""
    transient: bool
    """Whether the same request may succeed later without any change."""


def code_of(error: Exception) -> str:
    """Return S3's error code, or the HTTP status of an answer without a body; empty without an answer."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def is_missing(error: Exception) -> bool:
    """Return whether S3 reported an absent object."""
    return code_of(error) in MISSING


def explain(doing: str, error: Exception, advice: Mapping[str, str]) -> Refusal:
    """Explain one of `S3_ERRORS`; `doing` is the failed action (``could not write s3://bucket/key``).

    `advice` by S3's code (``AccessDenied``) goes before the general advice.
    """
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        message = error.response.get("Error", {}).get("Message", "")
        return refusal(doing, code_of(error), message, advice, status=status)
    said = _PASSWORD.sub("//***@", str(error))
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        remedy = "give the job a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        return Refusal(message=f"{doing}: {said}; {remedy}", transient=False)
    if isinstance(error, (ConnectionError, HTTPClientError, HTTPError, IncompleteReadError)):
        remedy = "check the network, the VPC's endpoint for S3, and AWS_ENDPOINT_URL_S3 if it is set"
        return Refusal(message=f"{doing}: {said}; {remedy}", transient=True)
    remedy = "check the AWS configuration"
    return Refusal(message=f"{doing}: {type(error).__name__}: {said}; {remedy}", transient=False)


def refusal(doing: str, code: str, message: str, advice: Mapping[str, str], *, status: int = 0) -> Refusal:
    """Explain an error code of S3, for a whole request or for one of its keys."""
    kind = _SAME.get(code, code)
    remedy = advice.get(kind) or _ADVICE.get(kind, "correct what it names")
    return Refusal(message=f"{doing}: {code} ({message}); {remedy}", transient=kind in _TRANSIENT or status >= 500)


class Cancelled(Exception):  # noqa: N818 - not an error
    """The caller cancelled the request."""


class Retries:
    """Retry a request after transient errors, with growing pauses, until too long has passed without progress."""

    def __init__(
        self, explain: Callable[[Exception], Refusal], *, seconds: float, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Start the clock of one request, which fails after `seconds` without progress."""
        self._explain = explain
        self._seconds = seconds
        self._cancelled = cancelled
        self.progress()

    def progress(self) -> None:
        """Restart the clock and the pauses, because bytes arrived."""
        self._since = time.monotonic()
        self._pause = _FIRST_PAUSE

    def ask(self, call: Callable[[], T]) -> T:
        """Call until success; raise the last of `S3_ERRORS`, or Cancelled."""
        while True:
            try:
                return call()
            except S3_ERRORS as error:  # noqa: PERF203 - a try costs nothing beside a request
                refused = self._explain(error)
                if not refused.transient or self.waited >= self._seconds:
                    raise
                self._wait(refused)

    @property
    def waited(self) -> float:
        """Seconds since the last progress, or since the start."""
        return time.monotonic() - self._since

    def _wait(self, refused: Refusal) -> None:
        # Random: otherwise all ranks of a job would retry at the same moment.
        pause = random.uniform(0.5, 1.0) * self._pause  # noqa: S311
        logger.log(logging.WARNING if pause >= _WORTH_SAYING else logging.INFO, "%s; asking again", refused.message)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0 and not self._cancelled():
            time.sleep(min(left, _GLANCE))
        if self._cancelled():
            raise Cancelled
