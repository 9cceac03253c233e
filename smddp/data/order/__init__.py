"""The order of the data: the samples of each rank, for any number of ranks and from any position in an epoch."""

from smddp.data.order.data_order import DataOrder, Partition, Permutation
from smddp.data.order.host_sharding import HostShardedSampler
from smddp.data.order.sampler import ElasticSampler, EvaluationSampler

__all__ = ["DataOrder", "ElasticSampler", "EvaluationSampler", "HostShardedSampler", "Partition", "Permutation"]
