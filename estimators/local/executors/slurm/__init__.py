"""Run each host of a job as a task of a Slurm allocation."""

from __future__ import annotations

from estimators.local.executors.settings import Slurm
from estimators.local.executors.slurm.executor import SlurmExecutor
from estimators.local.executors.slurm.slurm_program import own_address

__all__ = ["Slurm", "SlurmExecutor", "own_address"]
