"""What the SDK's Local Mode is given of a job: its parameters without those that it refuses or that do nothing."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimators import distribution
from estimators.checks.channels import local_path
from estimators.local_mode.checks import DO_NOTHING
from smddp.job import CHECKPOINT_URI_VARIABLE

CHECKPOINT_PATH = "/opt/ml/checkpoints"
_NOT_GIVEN = frozenset({"checkpoint_s3_uri", "checkpoint_local_path", *DO_NOTHING})
_UNUSED_ROLE = "arn:aws:iam::000000000000:role/local-mode"
"""Local Mode assumes no role, but the SDK wants one, and asks AWS for the ARN of a name."""


def for_sdk(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of ``PyTorch`` that Local Mode takes.

    Args:
        arguments: Those of the Estimator.
    """
    given = {name: value for name, value in arguments.items() if name not in _NOT_GIVEN}
    if "/" not in str(given.get("role")):
        given["role"] = _UNUSED_ROLE
    uri = str(arguments.get("checkpoint_s3_uri"))
    if uri.startswith("s3://"):
        given["environment"] = {CHECKPOINT_URI_VARIABLE: uri, **given.get("environment", {})}
    # These would be on if nothing were said of them.
    return {**given, "debugger_hook_config": False, "disable_profiler": True}


def checkpoint_directory(arguments: Mapping[str, Any]) -> Path | None:
    """The directory of this machine that keeps the job's checkpoints, if one does."""
    return local_path(arguments.get("checkpoint_s3_uri"))


def ends_with_first_host(arguments: Mapping[str, Any]) -> bool:
    """Whether mpirun on the first host runs all ranks, so that the other hosts only wait to be ended."""
    return distribution.launcher(arguments.get("distribution")).startswith("mpirun")


def inputs_for_sdk(inputs: Any) -> Any:
    """The channels as Local Mode takes them: of one host, ShardedByS3Key gives it all, but the SDK refuses it."""
    if isinstance(inputs, Mapping):
        return {name: inputs_for_sdk(place) for name, place in inputs.items()}
    origin = getattr(inputs, "config", {}).get("DataSource", {}).get("S3DataSource", {})
    if origin.get("S3DataDistributionType") != "ShardedByS3Key":
        return inputs
    replicated = copy.deepcopy(inputs)
    replicated.config["DataSource"]["S3DataSource"]["S3DataDistributionType"] = "FullyReplicated"
    return replicated
