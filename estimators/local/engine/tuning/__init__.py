"""Tuning jobs: a search for hyperparameters with real training jobs of this platform."""

from __future__ import annotations

from estimators.local.engine.tuning.operations import TuningOperations

__all__ = ["TuningOperations"]
