"""The embedded SageMaker: training jobs run on this machine, through the real API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimators.local.platform import LocalSageMaker as LocalSageMaker

__all__ = ["LocalSageMaker"]


def __getattr__(name: str) -> Any:
    if name == "LocalSageMaker":
        from estimators.local.platform import LocalSageMaker

        return LocalSageMaker
    raise AttributeError(f"module 'estimators.local' has no attribute {name!r}; it offers LocalSageMaker")
