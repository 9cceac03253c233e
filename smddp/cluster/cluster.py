"""The frozen value of this process's rank, the world size, and the address where ranks meet.

It only describes. ``smddp.distributed`` opens the process group; ``smddp.distributed.device`` chooses a device.

The innermost launcher numbers the ranks: torchrun may run inside mpirun, srun, OpenPAI or SageMaker; mpirun inside a
Slurm allocation or SageMaker; a plain process inside any of the platforms. The launchers are asked in that order, and
the first that recognizes its variables answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Protocol

from smddp.cluster import mpi, openpai, sagemaker, slurm, torchrun
from smddp.cluster.strict_variables import DEFAULT_PORT, DERIVED, Environment, EnvValue, EnvValues, unnamed_hosts
from smddp.errors import ClusterError


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """This process's rank in its job, and the job's nodes.

    Two clusters are equal if their fields are equal; ``sources`` do not count.

    Examples:
        >>> cluster = Cluster.detect({})
        >>> cluster.rank, cluster.world_size, cluster.launcher
        (0, 1, 'single')
        >>> cluster.sources["rank"]
        'default: no launcher set any variable, so one process'

    Raises:
        ClusterError: The fields contradict each other.
    """

    rank: int
    """This process's rank, 0 to world_size - 1."""
    local_rank: int
    """This process's rank on its node, 0 to local_world_size - 1; usually its GPU's number."""
    world_size: int
    """All processes of the job."""
    local_world_size: int
    """The processes on this node."""
    node_rank: int
    """This node's number, 0 to node_count - 1."""
    node_count: int
    """The nodes of the job."""
    hosts: tuple[str, ...]
    """A name for each node, in the platform's own order. Without names from the launcher, ``localhost`` for one node,
    ``node-0``, ... for several."""
    master_addr: str
    """The address of rank 0's node, where the processes meet."""
    master_port: int
    """The port there, 1 to 65535."""
    launcher: str
    """The launcher of the ranks: "torchrun", "mpi", "slurm", "openpai", "sagemaker", or "single" for none; or
    "torch.distributed" if the ranks come from the script's own process group."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The origin of each field: a variable with its value, or ``default: why``."""

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> Cluster:
        """Return the cluster that these variables describe: a pure function of the variables.

        Args:
            environ: The environment variables; None means this process's own.

        Raises:
            ClusterError: The variables are contradictory or incomplete. The message names the variable, its value and
                the expected value.

        Examples:
            >>> Cluster.detect({"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}).rank
            1
        """
        values = _read(os.environ if environ is None else environ)
        return cls(
            rank=values.rank.value,
            local_rank=values.local_rank.value,
            world_size=values.world_size.value,
            local_world_size=values.local_world_size.value,
            node_rank=values.node_rank.value,
            node_count=values.node_count.value,
            hosts=values.hosts.value,
            master_addr=values.master_addr.value,
            master_port=values.master_port.value,
            launcher=values.launcher.value,
            sources={field.name: getattr(values, field.name).source for field in fields(values)},
        )

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which logs and writes for all."""
        return self.rank == 0

    @property
    def host(self) -> str:
        """The name of this process's host."""
        return self.hosts[self.node_rank]

    @property
    def job_id(self) -> str:
        """What the launcher calls the job, where ``master_port`` is derived from it; else ""."""
        source = self.sources.get("master_port", "")
        return source.removeprefix(DERIVED) if source.startswith(DERIVED) else ""

    def explain(self) -> list[tuple[str, object, str]]:
        """Return each field with its value and its origin, in the order of the fields."""
        return [
            (entry.name, getattr(self, entry.name), self.sources.get(entry.name, "given"))
            for entry in fields(self)
            if entry.name != "sources"
        ]

    def __post_init__(self) -> None:
        for problem in self._contradictions():
            raise ClusterError(f"The variables contradict each other: {problem}.")

    def _contradictions(self) -> Iterator[str]:
        for index, size in (("rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "node_count")):
            if not 0 <= getattr(self, index) < getattr(self, size):
                yield (
                    f"{self._show(index)} must lie between 0 and {getattr(self, size) - 1}, because {self._show(size)}"
                )
        for part in ("local_world_size", "node_count"):
            if getattr(self, part) > self.world_size:
                yield f"{self._show(part)} can be at most {self._show('world_size')}"
        if self.node_count == 1:
            for local, whole in (("local_world_size", "world_size"), ("local_rank", "rank")):
                if getattr(self, local) != getattr(self, whole):
                    yield f"{self._show(local)} must be {self._show(whole)}, because {self._show('node_count')}"
        elif self.local_world_size == self.world_size:
            yield (
                f"{self._show('local_world_size')} leaves no process of {self._show('world_size')} for the other nodes "
                f"of {self._show('node_count')}"
            )
        if len(self.hosts) != self.node_count:
            yield f"{self._show('hosts')} must be as many as {self._show('node_count')}"
        if len(set(self.hosts)) != len(self.hosts):
            yield f"{self._show('hosts')} names a host twice"
        if not 1 <= self.master_port <= 65535:
            yield f"{self._show('master_port')} is no port: expected 1 to 65535"

    def _show(self, name: str) -> str:
        source = self.sources.get(name, "given")
        return f"{name} {getattr(self, name)} ({source})"


class _Launcher(Protocol):
    """The interface of each launcher's module."""

    def started(self, environment: Environment) -> bool:
        """Return whether this launcher started the process, judged by its variables."""

    def read(self, environment: Environment) -> EnvValues:
        """Return the values of its variables."""


_LAUNCHERS: tuple[_Launcher, ...] = (torchrun, mpi, slurm, openpai, sagemaker)


def _read(variables: Mapping[str, str]) -> EnvValues:
    """Return the values from this process's launcher; raise ClusterError if its variables are incomplete or invalid."""
    environment = Environment(variables)
    launcher = next((launcher for launcher in _LAUNCHERS if launcher.started(environment)), None)
    values = _read_single(environment) if launcher is None else launcher.read(environment)
    if "WORLD_SIZE" in environment:  # often exported for scripts that read it themselves
        world_size = environment.integer("WORLD_SIZE", beside="WORLD_SIZE", minimum=1)
        if world_size.value != values.world_size.value:
            raise ClusterError(
                f"{world_size.source}, but {values.launcher.value} started {values.world_size.value} processes "
                f"({values.world_size.source}): unset WORLD_SIZE, or start as many."
            )
    return values


def _read_single(environment: Environment) -> EnvValues:
    """Return rank 0 of 1, for no launcher. MASTER_ADDR and MASTER_PORT are kept, but imply no launcher."""
    if "SLURM_JOB_ID" in environment:
        why = f"default: {environment.show('SLURM_JOB_ID')}, but srun did not start this process, so one process"
    else:
        why = "default: no launcher set any variable, so one process"
    zero, one = EnvValue(0, why), EnvValue(1, why)
    return EnvValues(
        launcher=EnvValue("single", why),
        rank=zero,
        local_rank=zero,
        world_size=one,
        local_world_size=one,
        node_rank=zero,
        node_count=one,
        hosts=unnamed_hosts(1, "a single process"),
        master_addr=environment.master_addr(EnvValue("127.0.0.1", why)),
        master_port=environment.master_port(EnvValue(DEFAULT_PORT, why)),
    )
