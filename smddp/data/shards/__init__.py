"""Shards: data in large files, read in sequence, in an order that resumes in mid-epoch on any number of ranks."""

from smddp.data.formats.record import RawRecord
from smddp.data.shards.dataset import RecordDecoder, ShardedDataset
from smddp.data.shards.index import ShardIndex
from smddp.data.shards.shard_order import ShardEvaluation, ShardOrder

__all__ = ["RawRecord", "RecordDecoder", "ShardEvaluation", "ShardIndex", "ShardOrder", "ShardedDataset"]
