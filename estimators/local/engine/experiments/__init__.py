"""Experiments, their trials, and trial components: those that a user makes, and each job's own."""

from __future__ import annotations

from estimators.local.engine.experiments.job_component import JobToTrack
from estimators.local.engine.experiments.operations import Experiments

__all__ = ["Experiments", "JobToTrack"]
