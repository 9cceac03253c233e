"""What S3 can refuse to a store, as one of the store's errors that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smddp.checkpoint.stores.store import StoreError
from smddp.storage import s3_errors as storage_errors
from smddp.storage.s3_errors import S3_ERRORS

_ADVICE = {
    "AccessDenied": (
        "allow the role s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and, on the bucket, "
        "s3:ListBucket and s3:ListBucketMultipartUploads, and the key's kms:GenerateDataKey and kms:Decrypt if there "
        "is one"
    ),
    "SlowDown": "S3 limits the rate of requests: save less often, or under another prefix",
    "EntityTooSmall": "this server wants parts of at least 5 MiB: leave part_size as it is",
    "QuotaExceeded": "there is no room left: remove something, or ask for more",
}


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
    return _as_store_error(storage_errors.explain(doing, error, _ADVICE))


def refusal(doing: str, code: str, message: str) -> StoreError:
    """Say what S3 refused of one key of a request."""
    return _as_store_error(storage_errors.refusal(doing, code, message, _ADVICE))


def _as_store_error(refused: storage_errors.Refusal) -> StoreError:
    return StoreError(refused.message, transient=refused.transient)
