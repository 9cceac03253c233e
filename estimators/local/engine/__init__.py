"""SageMaker's training jobs as a library: a CreateTrainingJob dict in, a DescribeTrainingJob dict out; no HTTP."""

from __future__ import annotations

from estimators.local.engine.engine import Engine
from estimators.local.engine.errors import ApiError

__all__ = ["ApiError", "Engine"]
