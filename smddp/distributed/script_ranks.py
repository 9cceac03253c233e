"""Ranks that the script makes itself: its process group is adopted, and ranks spawned below a launcher's are refused.

A process group may be made by ``env://``, ``tcp://`` or ``file://``. The group decides: the caller of
``init_process_group`` set its ranks. The environment may know more, such as the hosts' names. If the environment shows
one process alone, as with ``torch.multiprocessing``, the ranks tell each other.

A driver that spawns its ranks is started once, or once a host. Under torchrun with several ranks, each rank is such a
driver: all of them spawn ranks with the same numbers, which wait for one another until a timeout. Two checks refuse
them at once: the numbers must be an equal share of the launcher's rank, and two processes of one driver must not have
the same rank. Processes that Python's multiprocessing did not spawn are never refused here.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import multiprocessing
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from smddp.cluster import Cluster
from smddp.cluster.strict_variables import DEFAULT_PORT, is_equal_share
from smddp.distributed.store import PREFIX, connect_again, innermost, meet
from smddp.errors import ClusterError, DistributedError

logger = logging.getLogger(__name__)

_SOURCE = "torch.distributed's process group, which the script made"

_REMEDY = (
    "Start the script with python, once a host, or in a job without distribution; or leave the ranks to the launcher, "
    "and call the training function where the script spawns it"
)

_claim: socket.socket | None = None
"""The bound socket that claims this process's rank. The kernel frees the name when the process ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The script's process group."""

    cluster: Cluster
    store: Store
    """The group's own store, under ``prefix``."""
    prefix: str


def read_group(given: Cluster | None, timeout: timedelta) -> Group:
    """Return the default process group as its ranks see it; all must call it.

    ``given`` is this rank's cluster, if the caller knows it; else the environment is read. Raise DistributedError if
    the cluster or the environment contradicts the group, or ranks are missing after ``timeout``. A launcher that
    started each host once does not contradict a group with equally many ranks on each.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if given is None:
        _refuse_rank_of_a_rank(rank, world_size)
    known = _known_cluster(given)
    if known is not None and not is_equal_share(rank, world_size, outer_rank=known.rank, outer_size=known.world_size):
        raise DistributedError(
            f"the script has made a process group in which this is rank {rank} of {world_size}, but it is rank "
            f"{known.rank} of {known.world_size} by {known.sources.get('rank', 'the cluster that was given')}: "
            "make the group with those numbers, or leave it to smddp.join()"
        )
    default_store = distributed_c10d._get_default_store()  # noqa: SLF001 - torch 2.4 has no other name for it
    job_store = connect_again(default_store, PREFIX, timeout)
    alone = _on_one_host(rank, world_size, default_store)
    meeting = meet(job_store, alone, timeout)
    store = PrefixStore(meeting, job_store)
    store.set(_host_key(rank), socket.gethostname())
    if known is None or known.world_size != world_size:
        hosts = [bytes(store.get(_host_key(each))).decode() for each in range(world_size)]
        known = _on_hosts(alone, hosts)
    return Group(cluster=known, store=store, prefix=f"{PREFIX}/{meeting}")


def _known_cluster(given: Cluster | None) -> Cluster | None:
    if given is not None:
        return given
    try:
        return Cluster.detect()
    except ClusterError as error:  # the group decides
        logger.info("the ranks are those of the script's process group; the environment alone does not tell: %s", error)
        return None


def _host_key(rank: int) -> str:
    return f"host/{rank}"


def _on_one_host(rank: int, world_size: int, store: Store) -> Cluster:
    """Return the cluster by the group alone, before the ranks know each other's hosts."""
    server = innermost(store)
    address, port = (server.host, server.port) if isinstance(server, TCPStore) else ("127.0.0.1", DEFAULT_PORT)
    return Cluster(
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        local_world_size=world_size,
        node_rank=0,
        node_count=1,
        hosts=(socket.gethostname(),),
        master_addr=address,
        master_port=port,
        launcher="torch.distributed",
        sources=dict.fromkeys(("rank", "world_size", "launcher"), _SOURCE),
    )


def _on_hosts(cluster: Cluster, hosts: list[str]) -> Cluster:
    """Return the cluster with the host of each rank."""
    names = tuple(dict.fromkeys(hosts))
    own = hosts[cluster.rank]
    return Cluster(
        rank=cluster.rank,
        local_rank=hosts[: cluster.rank].count(own),
        world_size=cluster.world_size,
        local_world_size=hosts.count(own),
        node_rank=names.index(own),
        node_count=len(names),
        hosts=names,
        master_addr=cluster.master_addr,
        master_port=cluster.master_port,
        launcher=cluster.launcher,
        sources=cluster.sources,
    )


def detect_cluster() -> Cluster:
    """Detect this process's rank in its job, and refuse a rank that another process has.

    Raise ClusterError for contradictory or incomplete environment variables, and DistributedError for a spawned process
    whose rank a launcher's rank, or another spawned process, has.
    """
    cluster = Cluster.detect()
    if multiprocessing.parent_process() is not None and cluster.world_size > 1:
        _refuse_rank_of_a_rank(cluster.rank, cluster.world_size)
        _claim_rank(cluster)
    return cluster


def _refuse_rank_of_a_rank(rank: int, world_size: int) -> None:
    """Raise DistributedError for a spawned rank that is not an equal share of the rank that spawned it."""
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
