"""Objects of S3 read in sequence, parts ahead of the reader, without a copy on disk."""

from smddp.data.streams.source import S3Source

__all__ = ["S3Source"]
