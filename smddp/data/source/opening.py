"""Chooses the source of a location: a directory, or a prefix in S3."""

from __future__ import annotations

import os

from smddp.data.source.directory import DirectorySource
from smddp.data.source.source import Source
from smddp.errors import DataError


def open_source(location: str | os.PathLike[str]) -> Source:
    """Return the source at a directory or ``s3://bucket/prefix``; raise DataError for anything else."""
    text = os.fspath(location)
    if text.startswith("s3://"):
        from smddp.data.source.s3 import S3Source  # here, because it needs boto3

        return S3Source(text)
    if text.startswith("s3:/") or "://" in text or not text:
        raise DataError(
            f"{text!r} is no place for shards: give a directory or, as a str and not as a Path, s3://bucket/prefix"
        )
    return DirectorySource(text)
