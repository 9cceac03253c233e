"""Experiments, their trials, and trial components, made by users and one for each job."""

from __future__ import annotations

from estimators.local.engine.experiments.job_component import JobToTrack
from estimators.local.engine.experiments.operations import Experiments

__all__ = ["Experiments", "JobToTrack"]
