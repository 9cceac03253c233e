"""The ranks of a run as they save together: who they are, who of them writes, and where their threads meet."""

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
    """What all ranks agreed on before the first save or load of a run."""

    ranks: Ranks
    run: str
    """The run's id, 12 hexadecimal digits: of this life of it, not of those before it that it goes on from."""
    writers: Sequence[int]
    """The ranks that write replicated state; rank 0 is the first."""
    results: RankResults

    @classmethod
    def gather(cls, ranks: Ranks, share: Literal["node", "all", "alone"]) -> SaveGroup:
        """Agree; collective.

        Args:
            ranks: Those that save together.
            share: Whether the ranks of rank 0's node share the writing, or all.

        Raises:
            DistributedError, PeerFailedError: A rank cannot reach the store that the threads meet in.
        """
        run = ranks.on_main(lambda: secrets.token_hex(6))
        if ranks.world_size == 1:
            return cls(ranks=ranks, run=run, writers=[0], results=RankResults(None, rank=0, world_size=1, run=run))
        cluster = _cluster(ranks)
        nodes: list[Any] = ranks.gather(lambda: None if cluster is None else cluster.node_rank)
        if cluster is None or None in nodes:  # the process group was made in a way of its own
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
    """Return where the ranks met, if this rank knows."""
    membership = current_membership()
    if membership is not None:
        return membership.cluster
    try:
        cluster = Cluster.detect()
    except ClusterError:
        return None
    return cluster if (cluster.rank, cluster.world_size) == (ranks.rank, ranks.world_size) else None


def _join(ranks: Ranks, cluster: Cluster) -> Store:
    """Connect to the store in which the job's ranks met: rank 0's, or that of its host's torchrun."""
    membership = current_membership()

    def open_store() -> Store:
        store = None if membership is None else membership.connect(_CONNECT)
        return store or connect(cluster, _CONNECT, os.environ, serve=False)

    return ranks.agree(open_store)


def _serve(ranks: Ranks, hosts: Sequence[str]) -> Store:
    """Let rank 0 serve a store, and connect to it."""
    host = "localhost" if len(set(hosts)) == 1 else hosts[0]

    def serve() -> TCPStore | None:
        return TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_CONNECT) if ranks.is_main else None

    served = ranks.agree(serve)
    port = ranks.from_rank(0, 0 if served is None else served.port)
    return ranks.agree(lambda: served or TCPStore(host, port, timeout=_CONNECT))
