"""The order of the data: which samples each rank sees, at any number of ranks, from any point of an epoch."""

from smddp.data.permutation import Permutation
from smddp.data.sampler import ElasticSampler, EvaluationSampler

__all__ = ["ElasticSampler", "EvaluationSampler", "Permutation"]
