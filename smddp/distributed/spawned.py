"""Refuse ranks that ``torch.multiprocessing.spawn`` started below ranks that a launcher has started already.

A driver that spawns its ranks is started once, or once a host. Under torchrun with several ranks, each rank is such a
driver: all of them spawn ranks with the same numbers, which wait for one another until a timeout. Two checks refuse
them at once: the numbers must be an equal share of the launcher's rank, and two processes of one driver must not have
the same rank.

Processes that Python's multiprocessing did not spawn are never refused here.
"""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from smddp.cluster import Cluster
from smddp.cluster.environment import is_equal_share
from smddp.errors import ClusterError, DistributedError

_REMEDY = (
    "Start the script with python, once a host, or in a job without distribution; or leave the ranks to the launcher, "
    "and call the training function where the script spawns it"
)

_claim: socket.socket | None = None
"""The bound socket that claims this process's rank. The kernel frees the name when the process ends."""


def detect_cluster() -> Cluster:
    """Detect this process's rank in its job, and refuse a rank that another process has.

    Raise ClusterError for contradictory or incomplete environment variables, and DistributedError for a spawned process
    whose rank a launcher's rank, or another spawned process, has.
    """
    cluster = Cluster.detect()
    if multiprocessing.parent_process() is not None and cluster.world_size > 1:
        refuse_rank_of_a_rank(cluster.rank, cluster.world_size)
        _claim_rank(cluster)
    return cluster


def refuse_rank_of_a_rank(rank: int, world_size: int) -> None:
    """Raise DistributedError for a spawned rank that is no equal share of the rank that spawned it."""
    launched = _launched()
    if launched is None:
        return
    if not is_equal_share(rank, world_size, outer_rank=launched.rank, outer_size=launched.world_size):
        raise DistributedError(
            f"multiprocessing spawned this process as rank {rank} of {world_size}, below rank {launched.rank} of "
            f"{launched.world_size} ({launched.sources['rank']}): a launcher has started the ranks, and each of them "
            f"spawns ranks again. {_REMEDY}"
        )


def _launched() -> Cluster | None:
    """Return the launcher's rank that spawned this process; None if it is not one of several."""
    if multiprocessing.parent_process() is None:
        return None
    begun = _environment_at_start()
    if "TORCHELASTIC_RUN_ID" in os.environ and "TORCHELASTIC_RUN_ID" not in begun:
        return None  # torch's elastic_launch of a function spawns ranks, too, and numbers nodes freely
    try:
        launched = Cluster.detect(begun)
    except ClusterError:  # the driver may correct it before the ranks join
        return None
    return launched if launched.world_size > 1 else None


def _environment_at_start() -> Mapping[str, str]:
    """Return the environment with which this process was started, without later changes."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


def _claim_rank(cluster: Cluster) -> None:
    """Claim this rank among the living processes that the same parent spawned.

    The claim is an abstract Unix socket, bound until the process ends in any way. Raise DistributedError if it is
    taken.
    """
    global _claim
    if _claim is not None:
        _claim.close()  # this process has joined before
    parent = multiprocessing.parent_process()
    assert parent is not None
    family = hashlib.sha256(multiprocessing.current_process().authkey).hexdigest()[:32]
    _claim = socket.socket(socket.AF_UNIX)
    try:
        _claim.bind(f"\0smddp-rank-{family}-{parent.pid}-{cluster.rank}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise DistributedError(
            f"two processes that multiprocessing spawned are rank {cluster.rank} of {cluster.world_size} "
            f"({cluster.sources['rank']}): a launcher has set that for the script as a whole. {_REMEDY}"
        ) from None
