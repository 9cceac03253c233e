"""The location of data: a directory, or a prefix in S3 whose objects are read ahead and never copied to a disk.

``smddp.data.source.s3`` is imported only for S3 locations, because it needs boto3.
"""

from smddp.data.source.directory import DirectorySource, open_source
from smddp.data.source.source import Blob, Source

__all__ = ["Blob", "DirectorySource", "Source", "open_source"]
