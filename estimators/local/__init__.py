"""The embedded SageMaker: training jobs run on this machine, or on a Slurm cluster, through the real API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimators.local.executors.settings import Docker as Docker
    from estimators.local.executors.settings import Processes as Processes
    from estimators.local.executors.settings import Slurm as Slurm
    from estimators.local.platform import LocalSageMaker as LocalSageMaker

__all__ = ["Docker", "LocalSageMaker", "Processes", "Slurm"]


def __getattr__(name: str) -> Any:
    if name == "LocalSageMaker":
        from estimators.local.platform import LocalSageMaker

        return LocalSageMaker
    if name in __all__:
        from estimators.local.executors import settings

        return getattr(settings, name)
    raise AttributeError(f"module 'estimators.local' has no attribute {name!r}; it offers {', '.join(__all__)}")
