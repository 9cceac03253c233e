"""The record of one processing job: a job on hosts, with a description and an exit message."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from estimators.local.engine.hosted.logs import PROCESSING_JOBS
from estimators.local.engine.hosted.record import HostedRecord
from estimators.local.engine.processing.request import ProcessingRequest
from estimators.local.engine.records import RecordKind
from estimators.request_rules import DEFAULT_MAX_RUNTIME

_INPUT = {"S3InputMode": "File", "S3DataDistributionType": "FullyReplicated", "S3CompressionType": "None"}


class ProcessingRecord(HostedRecord[ProcessingRequest]):
    """The record of a processing job from its creation on."""

    kind = RecordKind(word="processing job", resource="processing-job", key="processing-job")
    log_group = PROCESSING_JOBS
    default_command = ()
    working_directory = "processing"

    @classmethod
    def _parse(cls, members: Mapping[str, Any]) -> ProcessingRequest:
        return ProcessingRequest.parse(members)

    @property
    def directory_name(self) -> str:
        """The name of the job's directory; the dot keeps it apart from a training job of the same name."""
        return f"processing.{self.name}"

    @property
    def names_for_programs(self) -> dict[str, str]:
        """No variables: a program reads its job from ``/opt/ml/config/processingjobconfig.json``."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Return the description as DescribeProcessingJob shows it."""
        return {**self.describe_request(), **self.summary()}

    def describe_request(self) -> dict[str, Any]:
        """Return the request with AWS's defaults."""
        asked = copy.deepcopy({name: value for name, value in self.request.members.items() if name != "Tags"})
        for given in asked.get("ProcessingInputs", ()):
            given.setdefault("AppManaged", False)
            if "S3Input" in given:
                given["S3Input"] = _INPUT | given["S3Input"]
        for given in asked.get("ProcessingOutputConfig", {}).get("Outputs", ()):
            given.setdefault("AppManaged", False)
        return {
            **asked,
            "ProcessingJobArn": self.arn,
            "StoppingCondition": {"MaxRuntimeInSeconds": DEFAULT_MAX_RUNTIME} | asked.get("StoppingCondition", {}),
        }

    def summary(self) -> dict[str, Any]:
        """Return the description without the request's members: the members that lists show and sort by."""
        progress = self._progress
        optional = {
            "ProcessingStartTime": progress.training_start,
            "ProcessingEndTime": progress.training_end,
            "FailureReason": progress.failure_reason,
            "ExitMessage": progress.exit_message if progress.ended else None,
        }
        return {
            "ProcessingJobName": self.name,
            "ProcessingJobArn": self.arn,
            "ProcessingJobStatus": progress.status,
            "CreationTime": progress.created,
            "LastModifiedTime": progress.modified,
            **{name: value for name, value in optional.items() if value is not None},
        }

    def leave_message(self, message: str) -> None:
        """Set the job's ExitMessage."""
        with self._changed:
            self._move(replace(self._progress, exit_message=message))
