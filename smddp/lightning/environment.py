"""``smddp.Cluster`` as a ClusterEnvironment of Lightning."""

from __future__ import annotations

from lightning.fabric.plugins.environments import ClusterEnvironment

from smddp.cluster import Cluster
from smddp.errors import DistributedError


class SmddpEnvironment(ClusterEnvironment):  # type: ignore[misc]  # mypy does not check Lightning
    """The ranks of torchrun, mpirun, Slurm, OpenPAI or SageMaker, for ``Trainer(plugins=[SmddpEnvironment()])``.

    Lightning starts no processes with it, because the launcher has started them.

    Args:
        cluster: This rank; detected from the environment if None.

    Examples:
        >>> environment = SmddpEnvironment()
        >>> environment.world_size()
        1
    """

    def __init__(self, cluster: Cluster | None = None) -> None:
        self._cluster = cluster or Cluster.detect()

    @property
    def creates_processes_externally(self) -> bool:
        """True: a launcher has started this process."""
        return True

    @property
    def main_address(self) -> str:
        """The address of rank 0's host."""
        return self._cluster.master_addr

    @property
    def main_port(self) -> int:
        """The port of rank 0."""
        return self._cluster.master_port

    @staticmethod
    def detect() -> bool:
        """Return whether a launcher has started this process."""
        return Cluster.detect().launcher != "single"

    def world_size(self) -> int:
        """Return the number of ranks."""
        return self._cluster.world_size

    def set_world_size(self, size: int) -> None:
        """Check Lightning's number of ranks; change nothing."""
        _check("ranks", size, self._cluster.world_size)

    def global_rank(self) -> int:
        """Return this rank's number among all ranks."""
        return self._cluster.rank

    def set_global_rank(self, rank: int) -> None:
        """Check Lightning's number of this rank; change nothing."""
        _check("as this one's rank", rank, self._cluster.rank)

    def local_rank(self) -> int:
        """Return this rank's number on its host."""
        return self._cluster.local_rank

    def node_rank(self) -> int:
        """Return the number of this host."""
        return self._cluster.node_rank

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Check the Trainer's ``devices`` and ``num_nodes``.

        Raises:
            DistributedError: They differ from the launcher's ranks and hosts.
        """
        _check("devices a node", num_devices, self._cluster.local_world_size)
        _check("nodes", num_nodes, self._cluster.node_count)


def _check(what: str, given: int, here: int) -> None:
    if given != here:
        raise DistributedError(
            f"Lightning counts {given} {what}, and the launcher has {here}: give its Trainer devices= the processes of "
            "each node and num_nodes= the nodes, job.cluster.local_world_size and job.cluster.node_count"
        )
