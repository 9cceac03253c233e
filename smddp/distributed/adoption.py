"""Adopt a process group that the script made itself, by ``env://``, ``tcp://`` or ``file://``: ranks and store.

The group decides: the caller of ``init_process_group`` set its ranks. The environment may know more, such as the hosts'
names. If the environment shows one process alone, as with ``torch.multiprocessing``, the ranks tell each other.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from smddp.cluster import Cluster
from smddp.cluster.environment import DEFAULT_PORT, is_equal_share
from smddp.distributed.spawned import refuse_rank_of_a_rank
from smddp.distributed.store import PREFIX, connect_again, innermost, meet
from smddp.errors import ClusterError, DistributedError

logger = logging.getLogger(__name__)

_SOURCE = "torch.distributed's process group, which the script made"


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
        refuse_rank_of_a_rank(rank, world_size)
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
