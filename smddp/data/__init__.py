"""The data of a run: its order (``order``), its location (``source``), and its readers (``shards``, ``pipes``)."""

from smddp.data.fingerprint import fingerprint
from smddp.data.order import DataOrder, ElasticSampler, EvaluationSampler, HostShardedSampler, Permutation

__all__ = ["DataOrder", "ElasticSampler", "EvaluationSampler", "HostShardedSampler", "Permutation", "fingerprint"]
