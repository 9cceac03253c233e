"""Chooses the launcher of this process: the innermost one, because it numbers the ranks.

torchrun may run inside mpirun, srun, OpenPAI or SageMaker; mpirun inside a Slurm allocation or SageMaker; a plain
process inside any of the platforms. The launchers are asked in that order, and the first that recognises its variables
answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from smddp.cluster import mpi, openpai, sagemaker, single, slurm, torchrun
from smddp.cluster.env_values import EnvValues
from smddp.cluster.environment import Environment
from smddp.errors import ClusterError


class Launcher(Protocol):
    """The interface of each launcher's module."""

    def started(self, environment: Environment) -> bool:
        """Return whether this launcher started the process, judged by its variables."""

    def read(self, environment: Environment) -> EnvValues:
        """Return the values of its variables."""


LAUNCHERS: tuple[Launcher, ...] = (torchrun, mpi, slurm, openpai, sagemaker, single)


def read(variables: Mapping[str, str]) -> EnvValues:
    """Return the values from this process's launcher; raise ClusterError if its variables are incomplete or invalid."""
    environment = Environment(variables)
    launcher = next(launcher for launcher in LAUNCHERS if launcher.started(environment))
    values = launcher.read(environment)
    if "WORLD_SIZE" in environment:  # often exported for scripts that read it themselves
        world_size = environment.integer("WORLD_SIZE", beside="WORLD_SIZE", minimum=1)
        if world_size.value != values.world_size.value:
            raise ClusterError(
                f"{world_size.source}, but {values.launcher.value} started {values.world_size.value} processes "
                f"({values.world_size.source}): unset WORLD_SIZE, or start as many."
            )
    return values
