"""A real Slurm for tests."""

from __future__ import annotations

from tests.slurm.slurm_cluster import SlurmCluster, can_run_slurm

__all__ = ["SlurmCluster", "can_run_slurm"]
