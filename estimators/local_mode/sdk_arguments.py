"""A job's parameters for the SDK's own Local Mode, without those that it refuses or ignores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimators.checks.local_jobs import NOT_IN_SDK, ONLY_SAGEMAKER
from smddp.job import CHECKPOINT_URI_VARIABLE

UNUSED_ROLE = "arn:aws:iam::000000000000:role/local-mode"
"""No role is assumed on this machine, but the SDK wants an ARN, and asks AWS for the ARN of a name."""
_NOT_GIVEN = frozenset({"checkpoint_s3_uri", "checkpoint_local_path", *ONLY_SAGEMAKER, *NOT_IN_SDK})


def for_sdk(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Estimator's parameters as ``PyTorch`` takes them in the SDK's Local Mode."""
    given = {name: value for name, value in arguments.items() if name not in _NOT_GIVEN}
    if "/" not in str(given.get("role")):
        given["role"] = UNUSED_ROLE
    uri = str(arguments.get("checkpoint_s3_uri"))
    if uri.startswith("s3://"):
        given["environment"] = {CHECKPOINT_URI_VARIABLE: uri, **given.get("environment", {})}
    # Both are on by default.
    return {**given, "debugger_hook_config": False, "disable_profiler": True}
