"""Run a job's hosts: the `Executor` contract, its implementation by plain processes, and others in sub-packages."""

from __future__ import annotations

from estimators.local.executors.executor import (
    ClusterSpec,
    Executor,
    ExecutorError,
    HandOverError,
    HostCluster,
    HostProcess,
    HostSpec,
    HostStartError,
    NoImageError,
    NoNamespacesError,
)
from estimators.local.executors.process import ProcessExecutor, inherited_environment, why_no_namespaces
from estimators.local.executors.supervised_process import SupervisedProcess, SupervisedProgram

__all__ = [
    "ClusterSpec",
    "Executor",
    "ExecutorError",
    "HandOverError",
    "HostCluster",
    "HostProcess",
    "HostSpec",
    "HostStartError",
    "NoImageError",
    "NoNamespacesError",
    "ProcessExecutor",
    "SupervisedProcess",
    "SupervisedProgram",
    "inherited_environment",
    "why_no_namespaces",
]
