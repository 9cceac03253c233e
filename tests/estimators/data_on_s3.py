"""The data that jobs of the tests name: `fit` looks whether they are there."""

from __future__ import annotations

from typing import Any

BUCKET = "jobs"
_KEYS = {
    "data": ("train", "test", "a", "b"),
    BUCKET: ("data", "old/model.tar.gz", "run-6/checkpoints/step-100", "run-6/output/model.tar.gz"),
}


def put_data(s3: Any) -> None:
    """Make the buckets, with an object for each place."""
    for bucket, keys in _KEYS.items():
        s3.create_bucket(Bucket=bucket)
        for key in keys:
            s3.put_object(Bucket=bucket, Key=key)
