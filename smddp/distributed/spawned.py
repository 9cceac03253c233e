"""Ranks that ``torch.multiprocessing.spawn`` started, where a launcher has started ranks already.

A driver that spawns its ranks is started once, or once a host. Under torchrun with several ranks each rank is such a
driver: all spawn ranks with the same numbers, which wait for one another until a timeout. Here they are refused, at
once: where the numbers are no equal share of the launcher's rank, and where two processes of one driver have one rank.

Processes that were not spawned by Python's multiprocessing are never refused here.
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
from smddp.cluster.shares import is_equal_share
from smddp.errors import ClusterError, DistributedError

_REMEDY = (
    "Start the script with python, once a host, or in a job without distribution; or leave the ranks to the launcher, "
    "and call the training function where the script spawns it"
)

_claim: socket.socket | None = None


def detect_cluster() -> Cluster:
    """Find this process's place in its job, and refuse one that another process has.

    Raises:
        ClusterError: The environment variables are contradictory or incomplete.
        DistributedError: Multiprocessing spawned this process, and a launcher's ranks, or another process that was
            spawned with it, have its numbers.
    """
    cluster = Cluster.detect()
    if multiprocessing.parent_process() is not None and cluster.world_size > 1:
        refuse_rank_of_a_rank(cluster.rank, cluster.world_size)
        _claim_rank(cluster)
    return cluster


def refuse_rank_of_a_rank(rank: int, world_size: int) -> None:
    """Refuse a spawned rank that is no equal share of the rank that spawned it; do nothing for any other process.

    Raises:
        DistributedError: It is no equal share.
    """
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
    """Return the launcher's rank that spawned this process, if it is one of several."""
    if multiprocessing.parent_process() is None:
        return None
    begun = _environment_at_start()
    if "TORCHELASTIC_RUN_ID" in os.environ and "TORCHELASTIC_RUN_ID" not in begun:
        return None  # torch's elastic_launch of a function: it spawns its ranks so, and numbers the nodes as it likes
    try:
        launched = Cluster.detect(begun)
    except ClusterError:  # what the driver corrects, before the ranks join
        return None
    return launched if launched.world_size > 1 else None


def _environment_at_start() -> Mapping[str, str]:
    """Return the environment with which this process was started, without what it has set since."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


def _claim_rank(cluster: Cluster) -> None:
    """Be the one living process of this rank among those that the same process spawned.

    The name is bound until the process ends, however it does.
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
