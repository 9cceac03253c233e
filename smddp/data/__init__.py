"""The order of the data: which samples each rank sees, at any number of ranks, from any point of an epoch."""

from smddp.data.fingerprint import fingerprint
from smddp.data.host_sharding import HostShardedSampler
from smddp.data.order import Order
from smddp.data.permutation import Permutation
from smddp.data.sampler import ElasticSampler, EvaluationSampler

__all__ = ["ElasticSampler", "EvaluationSampler", "HostShardedSampler", "Order", "Permutation", "fingerprint"]
