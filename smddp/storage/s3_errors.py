"""Explain errors of S3 and of the connection: the cause, advice, and whether a retry may help."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
    remedy = advice.get(kind) or _ADVICE.get(kind, "see what S3 says")
    return Refusal(message=f"{doing}: {code} ({message}); {remedy}", transient=kind in _TRANSIENT or status >= 500)
