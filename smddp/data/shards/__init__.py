"""Shards: data in large files, read in sequence, in an order that resumes in mid-epoch on any number of ranks."""

from smddp.data.shards.dataset import RecordDecoder, ShardedDataset
from smddp.data.shards.evaluation import ShardEvaluation
from smddp.data.shards.index import ShardIndex
from smddp.data.shards.order import ShardOrder
from smddp.data.shards.record import RawRecord
from smddp.data.shards.source import Blob, DirectorySource, Source, open_source

__all__ = [
    "Blob",
    "DirectorySource",
    "RawRecord",
    "RecordDecoder",
    "ShardEvaluation",
    "ShardIndex",
    "ShardOrder",
    "ShardedDataset",
    "Source",
    "open_source",
]
