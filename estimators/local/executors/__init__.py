"""What runs a training job's hosts: the `Executor` contract, and `ProcessExecutor`, without Docker or root."""

from __future__ import annotations

from estimators.local.executors.executor import Executor, HostProcess, HostSpec, HostStartError, Serve
from estimators.local.executors.process import ProcessExecutor

__all__ = ["Executor", "HostProcess", "HostSpec", "HostStartError", "ProcessExecutor", "Serve"]
