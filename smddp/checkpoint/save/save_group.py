"""The ranks that save together: which of them write, and the key-value store that connects their threads."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from smddp.checkpoint.save.rank_results import RankResults
from smddp.cluster import Cluster
from smddp.distributed import Ranks, current_membership
from smddp.distributed.store import connect
from smddp.errors import ClusterError

_CONNECT = timedelta(seconds=60)


@dataclass(kw_only=True, slots=True, frozen=True)
class SaveGroup:
    """The facts that all ranks agree on before the first save or load of a run."""

    ranks: Ranks
    run: str
    """The id of this run, 12 hexadecimal digits. A resumed run has a new one."""
    writers: Sequence[int]
    """The ranks that write replicated state; rank 0 is the first."""
    results: RankResults

    @classmethod
    def gather(cls, ranks: Ranks, share: Literal["node", "all", "alone"]) -> SaveGroup:
        """Agree on a group; collective. Raise DistributedError or PeerFailedError if a rank cannot reach the store."""
        run = ranks.on_main(lambda: secrets.token_hex(6))
        if ranks.world_size == 1:
            return cls(ranks=ranks, run=run, writers=[0], results=RankResults(None, rank=0, world_size=1, run=run))
        cluster = _cluster(ranks)
        nodes: list[Any] = ranks.gather(lambda: None if cluster is None else cluster.node_rank)
        if cluster is None or None in nodes:  # the script made the process group without a cluster that smddp knows
            nodes = ranks.gather(socket.gethostname)
            store = _serve(ranks, hosts=nodes)
        else:
            store = _join(ranks, cluster)
        return cls(
            ranks=ranks,
            run=run,
            writers=[rank for rank, node in enumerate(nodes) if share == "all" or node == nodes[0]],
            results=RankResults(store, rank=ranks.rank, world_size=ranks.world_size, run=run),
        )


def _cluster(ranks: Ranks) -> Cluster | None:
    """Return the cluster that the ranks joined; None if this rank does not know it."""
    membership = current_membership()
    if membership is not None:
        return membership.cluster
    try:
        cluster = Cluster.detect()
    except ClusterError:
        return None
    return cluster if (cluster.rank, cluster.world_size) == (ranks.rank, ranks.world_size) else None


def _join(ranks: Ranks, cluster: Cluster) -> Store:
    """Open a new connection to the rendezvous store of the job, which rank 0 or torchrun on its host serves."""
    membership = current_membership()

    def open_store() -> Store:
        store = None if membership is None else membership.connect(_CONNECT)
        return store or connect(cluster, _CONNECT, os.environ, serve=False)

    return ranks.agree(open_store)


def _serve(ranks: Ranks, hosts: Sequence[str]) -> Store:
    """Start a store on rank 0, and connect every rank to it."""
    host = "localhost" if len(set(hosts)) == 1 else hosts[0]

    def serve() -> TCPStore | None:
        return TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_CONNECT) if ranks.is_main else None

    served = ranks.agree(serve)
    port = ranks.from_rank(0, 0 if served is None else served.port)
    return ranks.agree(lambda: served or TCPStore(host, port, timeout=_CONNECT))
