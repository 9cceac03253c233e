"""The record of one training job: a job on hosts, with updates and a description."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from estimators.local.engine.hosted.logs import TRAINING_JOBS
from estimators.local.engine.hosted.record import HostedRecord
from estimators.local.engine.hosted.states import JobProgress
from estimators.local.engine.instance_groups import InstanceGroup
from estimators.local.engine.records import RecordKind
from estimators.local.engine.training.request import DEFAULT_CHECKPOINT_PATH, TrainingRequest
from estimators.local.engine.transfers.artifacts import model_uri
from estimators.request_rules import DEFAULT_MAX_RUNTIME
from estimators.service_model import service_model


class TrainingRecord(HostedRecord[TrainingRequest]):
    """The record of a training job from its creation on."""

    kind = RecordKind(word="training job", resource="training-job", key="training-job")
    log_group = TRAINING_JOBS
    default_command = ("train",)
    working_directory = "code"

    def __init__(self, request: TrainingRequest, arn: str) -> None:
        super().__init__(request, arn)
        self._updates: dict[str, Any] = {}

    @classmethod
    def _parse(cls, members: Mapping[str, Any]) -> TrainingRequest:
        return TrainingRequest.parse(members)

    def _restore(self, document: Mapping[str, Any]) -> None:
        super()._restore(document)
        self._updates = dict(document["updates"])

    def to_json(self) -> dict[str, Any]:
        """Return the document to save, from which another platform can resume; times as datetimes."""
        with self._changed:
            return {**super().to_json(), "updates": self._updates}

    @property
    def names_for_programs(self) -> dict[str, str]:
        """Environment variables that tell a program its job."""
        return {"TRAINING_JOB_NAME": self.name, "TRAINING_JOB_ARN": self.arn}

    def describe(self) -> dict[str, Any]:
        """Return the description as DescribeTrainingJob shows it."""
        with self._changed:
            progress, updates = self._progress, copy.deepcopy(self._updates)
        # As on AWS: the configured location, whether or not a model is there yet.
        model = model_uri(self.request.output, compressed=self.request.compressed)
        return {
            "ModelArtifacts": {"S3ModelArtifacts": model},
            **describe_request(self.request.members, updates),
            "TrainingJobArn": self.arn,
            **_describe_progress(progress),
            "FinalMetricDataList": self.metrics.describe(),
        }

    def summary(self) -> dict[str, Any]:
        """Return the description without the request's members: the members that lists show and sort by."""
        return {"TrainingJobName": self.name, "TrainingJobArn": self.arn, **_describe_progress(self._progress)}

    def update(self, members: Mapping[str, Any]) -> None:
        """Change members of the description, structures member by member; raise ApiError if the job has ended."""
        with self._changed:
            self._refuse_if_ended()
            for name, value in members.items():
                self._updates[name] = _merged(self._updates.get(name), value)
            self.note()

    def allocated(self, groups: Sequence[InstanceGroup]) -> None:
        """Show the instance type selected from the job's InstancePreferences."""
        if "InstancePreferences" in self.request.members["ResourceConfig"] and not self.ended:
            (group,) = groups
            selected = {"SelectedInstanceType": group.instance_type, "SelectedInstanceCount": group.count}
            self.update({"ResourceConfig": selected})

    @property
    def _may_begin_again(self) -> bool:
        return super()._may_begin_again and "TuningJobArn" not in self._updates


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
        **{name: _merged(asked.get(name), value) for name, value in updates.items()},
    }


def _describe_progress(progress: JobProgress) -> dict[str, Any]:
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


def _merged(old: Any, new: Any) -> Any:
    """Return a member after a change. A structure keeps the members that the change lacks."""
    return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new
