"""Tuning jobs: search for hyperparameters by training jobs of this platform, each of which really trains."""

from estimators.local.engine.tuning.operations import TuningJobs as TuningJobs
