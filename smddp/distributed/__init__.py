"""The ranks of a job together: joining and leaving the process group, and their collectives and agreements."""

from smddp.distributed.collectives import (
    gather_results,
    sum_over_ranks,
    sum_results,
)
from smddp.distributed.ddp_options import DDPOptions, PowerSGD
from smddp.distributed.device import cast, move
from smddp.distributed.dividing import divide_copy, prepare_weights
from smddp.distributed.first_failure import FirstFailure, is_communication_error
from smddp.distributed.membership import DataRank, Membership, current_membership, join, leave
from smddp.distributed.ranks import Agreement, Decision, PeerFailedError, Ranks, StopQuestion
from smddp.distributed.replica import Replica, tensors_of
from smddp.distributed.replica_check import ReplicaCheck
from smddp.distributed.script_ranks import detect_cluster
from smddp.distributed.sharded import (
    Sharded,
    ShardedModel,
    data_rank_of,
    has_shards,
    is_flat,
    why_not_trainable,
)

__all__ = [
    "Agreement",
    "DDPOptions",
    "DataRank",
    "Decision",
    "FirstFailure",
    "Membership",
    "PeerFailedError",
    "PowerSGD",
    "Ranks",
    "Replica",
    "ReplicaCheck",
    "Sharded",
    "ShardedModel",
    "StopQuestion",
    "cast",
    "current_membership",
    "data_rank_of",
    "detect_cluster",
    "divide_copy",
    "gather_results",
    "has_shards",
    "is_communication_error",
    "is_flat",
    "join",
    "leave",
    "move",
    "prepare_weights",
    "sum_over_ranks",
    "sum_results",
    "tensors_of",
    "why_not_trainable",
]
