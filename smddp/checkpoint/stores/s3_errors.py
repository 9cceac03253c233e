"""Translate S3's refusals to StoreError, with advice on what to do."""

from __future__ import annotations

from smddp.checkpoint.stores.store import StoreError
from smddp.errors import CheckpointError
from smddp.storage.s3_download import Downloads, TooLargeError
from smddp.storage.s3_errors import Refusal

ADVICE = {
    "AccessDenied": (
        "allow the role s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and, on the bucket, "
        "s3:ListBucket and s3:ListBucketMultipartUploads, and the key's kms:GenerateDataKey and kms:Decrypt if there "
        "is one"
    ),
    "SlowDown": "S3 limits the rate of requests: save less often, or under another prefix",
    "EntityTooSmall": "this server wants parts of at least 5 MiB: leave part_size as it is",
    "QuotaExceeded": "there is no room left: remove something, or ask for more",
}


def store_error(refused: Refusal) -> StoreError:
    """Convert a refusal to a StoreError."""
    return StoreError(refused.message, transient=refused.transient)


def read_small(downloads: Downloads, key: str, *, largest: int) -> tuple[bytes, str] | None:
    """Read a small object in one request: its bytes and their ETag; None if absent.

    Raise CheckpointError, whose message is only the reason, if it has more than `largest` bytes.
    """
    try:
        return downloads.read_whole(key, largest=largest)
    except TooLargeError as error:
        raise CheckpointError(f"{key.rpartition('/')[2]} is not a file of at most {largest} bytes") from error
