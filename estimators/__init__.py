"""estimators: the launching side. Builds SageMaker training jobs, checks them, and runs them here or on AWS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimators.estimator import Estimator as Estimator

__all__ = ["Estimator"]


def __getattr__(name: str) -> Any:
    if name == "Estimator":
        from estimators.estimator import Estimator

        return Estimator
    raise AttributeError(f"module 'estimators' has no attribute {name!r}; it offers Estimator")
