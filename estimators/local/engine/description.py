"""The output of DescribeTrainingJob: the request with AWS's defaults, and the job's progress."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from estimators.local.engine.request import DEFAULT_CHECKPOINT_PATH
from estimators.local.engine.states import JobProgress
from estimators.request_rules import DEFAULT_MAX_RUNTIME
from estimators.service_model import service_model


def describe_request(members: Mapping[str, Any], updates: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a request that are shown, with AWS's defaults and later updates."""
    shape = service_model().operation_model("DescribeTrainingJob").output_shape
    assert shape is not None
    asked = copy.deepcopy({name: value for name, value in members.items() if name in shape.members})
    asked["OutputDataConfig"] = {"KmsKeyId": "", "CompressionType": "GZIP"} | asked["OutputDataConfig"]
    for channel in asked.get("InputDataConfig", ()):
        channel.update({"CompressionType": "None", "RecordWrapperType": "None"} | channel)
    asked["StoppingCondition"] = {"MaxRuntimeInSeconds": DEFAULT_MAX_RUNTIME} | asked.get("StoppingCondition", {})
    if "CheckpointConfig" in asked:
        asked["CheckpointConfig"] = {"LocalPath": DEFAULT_CHECKPOINT_PATH} | asked["CheckpointConfig"]
    return {
        "EnableNetworkIsolation": False,
        "EnableInterContainerTrafficEncryption": False,
        "EnableManagedSpotTraining": False,
        **asked,
        **{name: merged(asked.get(name), value) for name, value in updates.items()},
    }


def describe_progress(progress: JobProgress) -> dict[str, Any]:
    """Return a job's progress as members of the description, without those not known yet."""
    seconds = max(1, round(progress.training_seconds)) if progress.training_seconds else None
    optional = {
        "TrainingStartTime": progress.training_start,
        "TrainingEndTime": progress.training_end,
        "TrainingTimeInSeconds": seconds if progress.ended else None,
        "BillableTimeInSeconds": seconds if progress.ended else None,
        "FailureReason": progress.failure_reason,
        "ModelArtifacts": progress.model_artifacts and {"S3ModelArtifacts": progress.model_artifacts},
    }
    return {
        "TrainingJobStatus": progress.status,
        "SecondaryStatus": progress.secondary_status,
        "SecondaryStatusTransitions": [transition.describe() for transition in progress.transitions],
        "CreationTime": progress.created,
        "LastModifiedTime": progress.modified,
        **{name: value for name, value in optional.items() if value is not None},
    }


def merged(old: Any, new: Any) -> Any:
    """Return a member after a change, which replaces single members of a structure."""
    return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new
