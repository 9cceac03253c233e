"""Tuning jobs: a search for hyperparameters with real training jobs of this platform."""

from estimators.local.engine.tuning.operations import TuningJobs as TuningJobs
