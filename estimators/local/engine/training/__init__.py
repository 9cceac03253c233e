"""Training jobs: a container's program on one or more hosts, with checkpoints and a model in S3."""

from __future__ import annotations

from estimators.local.engine.training.operations import TrainingOperations

__all__ = ["TrainingOperations"]
