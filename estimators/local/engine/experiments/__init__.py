"""Experiments, their trials, and trial components, made by users and one for each job."""

from __future__ import annotations

from estimators.local.engine.experiments.experiments import Experiments
from estimators.local.engine.experiments.job_component import JobToTrack

__all__ = ["Experiments", "JobToTrack"]
