"""estimators: the launching side. Builds SageMaker training jobs, checks them, and runs them here or on AWS."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimators.estimator import Estimator as Estimator
    from estimators.remote_function import remote as remote

_HOMES = {"Estimator": "estimators.estimator", "remote": "estimators.remote_function"}

__all__ = ["Estimator", "remote"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'estimators' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), name)
