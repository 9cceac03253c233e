"""What S3, and the way to it, can refuse: each error of botocore as one of ours that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004 - botocore's, of which its errors of a connection are
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)
from urllib3.exceptions import HTTPError

from smddp.checkpoint.stores.store import StoreError

S3_ERRORS = (BotoCoreError, ClientError, HTTPError)
"""What a call of botocore raises; the last one while a body is read over TLS."""

_ADVICE = {
    "NoSuchBucket": "create the bucket (smddp never does), or correct the URI",
    "AccessDenied": (
        "allow the role s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and, on the bucket, "
        "s3:ListBucket and s3:ListBucketMultipartUploads, and the key's kms:GenerateDataKey and kms:Decrypt if there "
        "is one"
    ),
    "ExpiredToken": "the credentials expired: renew them, or use a role, whose credentials renew themselves",
    "InvalidAccessKeyId": "the access key is unknown there: correct the credentials, or the endpoint",
    "SignatureDoesNotMatch": "the secret key is wrong: correct AWS_SECRET_ACCESS_KEY or the profile",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION to it",
    "SlowDown": "S3 limits the rate of requests: save less often, or under another prefix",
    "InternalError": "S3 itself failed, several times: try again later",
    "EntityTooSmall": "this server wants parts of at least 5 MiB: leave part_size as it is",
    "QuotaExceeded": "there is no room left: remove something, or ask for more",
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


def code_of(error: Exception) -> str:
    """Give S3's name for what is wrong, or the HTTP status where the answer had no body; empty if S3 said nothing."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def is_missing(error: Exception) -> bool:
    """Whether S3 said that there is no such object."""
    return code_of(error) in ("NoSuchKey", "404")


@contextmanager
def s3_errors(doing: str) -> Iterator[None]:
    """Raise what S3 raises within as a StoreError.

    Args:
        doing: what failed if it fails: ``could not write s3://bucket/key``.
    """
    try:
        yield
    except S3_ERRORS as error:
        raise store_error(doing, error) from error


def store_error(doing: str, error: Exception) -> StoreError:
    """Say what is wrong, and what to do, in one sentence."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return refusal(doing, code_of(error), error.response.get("Error", {}).get("Message", ""), status=status)
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        advice = "give the job a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        return StoreError(f"{doing}: {error}; {advice}", transient=False)
    if isinstance(error, (ConnectionError, HTTPClientError, HTTPError)):
        advice = "check the network, the VPC's endpoint for S3, and AWS_ENDPOINT_URL_S3 if it is set"
        return StoreError(f"{doing}: {error}; {advice}", transient=True)
    return StoreError(f"{doing}: {type(error).__name__}: {error}; check the AWS configuration", transient=False)


def refusal(doing: str, code: str, message: str, *, status: int = 0) -> StoreError:
    """Say what S3 refused under a code of its own, for a whole request or for one key of it."""
    kind = _SAME.get(code, code)
    advice = _ADVICE.get(kind, "see what S3 says")
    return StoreError(f"{doing}: {code} ({message}); {advice}", transient=kind in _TRANSIENT or status >= 500)
