"""Which source reads a location: a directory, or a prefix in S3."""

from __future__ import annotations

import os

from smddp.data.source.directory import DirectorySource
from smddp.data.source.source import Source
from smddp.errors import DataError


def open_source(location: str | os.PathLike[str]) -> Source:
    """Give the source at a location: a directory, or ``s3://bucket/prefix``.

    Raises:
        DataError: The location is neither.
    """
    text = os.fspath(location)
    if text.startswith("s3://"):
        from smddp.data.source.s3 import S3Source  # only who reads from there needs boto3

        return S3Source(text)
    if text.startswith("s3:/") or "://" in text or not text:
        raise DataError(
            f"{text!r} is no place for shards: give a directory or, as a str and not as a Path, s3://bucket/prefix"
        )
    return DirectorySource(text)
