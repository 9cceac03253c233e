"""The nodes of a ``smddp run`` and their master address: from its arguments, or from srun or OpenPAI."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from smddp.cluster import Cluster, openpai, slurm
from smddp.cluster.environment import Environment
from smddp.errors import DistributedError
from smddp.launch.torchrun import check_port, free_port

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """All nodes of a run, and those on this machine."""

    count: int
    rank: int | None
    """This machine's number among the nodes; None if all of them are here."""
    master_addr: str
    """The first node's address."""
    master_port: int
    """A port there; 0 lets the agent of a single node take a free one right before it listens."""

    @property
    def here(self) -> range:
        """The numbers of the nodes on this machine."""
        return range(self.count) if self.rank is None else range(self.rank, self.rank + 1)


def find_nodes(
    environ: Mapping[str, str],
    *,
    count: int | None = None,
    rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
) -> Nodes:
    """Return the nodes of a run; raise DistributedError if arguments and launcher contradict each other.

    A task of srun or OpenPAI is one node, unless ``rank`` is set. Otherwise all nodes are here, on a free port of the
    loopback address. Raise ClusterError if the launcher's variables are contradictory or incomplete.

    Examples:
        >>> find_nodes({}, count=2, master_port=29500).here
        range(0, 2)
    """
    placed = _placed(environ) if rank is None else None
    if placed is not None:
        if count not in (None, placed.node_count):
            raise DistributedError(
                f"--nodes {count}, but {placed.sources['launcher']} started this on {placed.node_count} nodes: leave "
                "--nodes out, or give each task its --node-rank."
            )
        count, rank = placed.node_count, placed.node_rank
        master_addr, master_port = master_addr or placed.master_addr, master_port or placed.master_port
    elif count is None and rank is None and (unused := slurm.unused_nodes(environ)) is not None:
        logger.warning("NODES ARE LEFT UNUSED: %s", unused)
    count = 1 if count is None else count
    if count < 1:
        raise DistributedError(f"{count} nodes: give one or more.")
    check_port(master_port or 0)
    if rank is None and master_addr is not None:
        raise DistributedError("A master address is for the nodes of a real cluster: give the node rank as well.")
    if rank is not None:
        if not 0 <= rank < count:
            raise DistributedError(f"Node rank {rank} is not one of 0 to {count - 1}.")
        if count > 1 and (master_addr is None or master_port is None):
            raise DistributedError(
                "One node of several needs the first node's address and port, the same on every node."
            )
    port = master_port or (free_port() if count > 1 else 0)
    return Nodes(count=count, rank=rank, master_addr=master_addr or "127.0.0.1", master_port=port)


def _placed(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster of a launcher that started one task on each of several nodes; None otherwise."""
    environment = Environment(environ)
    if not (slurm.started(environment) or openpai.started(environment)):
        return None
    cluster = Cluster.detect(environ)
    if cluster.launcher not in ("slurm", "openpai") or cluster.world_size == 1:
        return None
    if cluster.world_size != cluster.node_count:
        raise DistributedError(
            f"{cluster.sources['launcher']} started {cluster.world_size} tasks on {cluster.node_count} node(s), and "
            "smddp run starts all the ranks of a node itself: start one task on each (srun --ntasks-per-node=1), or "
            "let srun start the ranks (srun python …)."
        )
    return cluster
