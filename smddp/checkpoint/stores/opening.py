"""Which store keeps the checkpoints at a location: a directory, or a prefix in S3."""

from __future__ import annotations

import os

from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.store import Store


def open_store(location: str | os.PathLike[str]) -> Store:
    """Give the store at a location.

    Args:
        location: A directory, or ``s3://bucket/prefix``.

    Raises:
        ValueError: It is neither.
    """
    text = os.fspath(location)
    if text.startswith("s3://"):
        from smddp.checkpoint.stores.s3 import S3Store  # only who saves there needs boto3

        return S3Store(text)
    if text.startswith("s3:/") or "://" in text or not text:
        raise ValueError(
            f"{text!r} is no place for checkpoints: give a directory or, as a str and not as a Path, s3://bucket/prefix"
        )
    return DirectoryStore(text)
