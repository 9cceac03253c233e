"""What S3 can refuse to a store, as one of the store's errors that says what to do."""

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
    """Make a store's error of a refusal."""
    return StoreError(refused.message, transient=refused.transient)


def read_small(downloads: Downloads, key: str, *, largest: int) -> tuple[bytes, str] | None:
    """Read a small object at once.

    Returns:
        Its bytes and its ETag, which belong together; None if it is missing.

    Raises:
        CheckpointError: It is larger than the largest. The message is only the reason.
        StoreError: S3 did not give it.
    """
    try:
        return downloads.read_whole(key, largest=largest)
    except TooLargeError as error:
        raise CheckpointError(f"{key.rpartition('/')[2]} is not a file of at most {largest} bytes") from error
