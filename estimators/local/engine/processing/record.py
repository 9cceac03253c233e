"""One processing job as others see it: what every job on hosts is, and its description and exit message."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from estimators.local.engine.hosted_job import HostedJob
from estimators.local.engine.processing.request import ProcessingRequest
from estimators.request_rules import DEFAULT_MAX_RUNTIME

_INPUT = {"S3InputMode": "File", "S3DataDistributionType": "FullyReplicated", "S3CompressionType": "None"}


class ProcessingRecord(HostedJob[ProcessingRequest]):
    """A processing job from its creation on; the arguments are `HostedJob`'s."""

    kind = "processing job"
    default_command = ()
    working_directory = "processing"

    @classmethod
    def _parse(cls, members: Mapping[str, Any]) -> ProcessingRequest:
        return ProcessingRequest.parse(members)

    @property
    def directory_name(self) -> str:
        """How the job's directory is called: a training job may have the same name, but no dot in it."""
        return f"processing.{self.name}"

    @property
    def names_for_programs(self) -> dict[str, str]:
        """None: a program finds its job in ``/opt/ml/config/processingjobconfig.json``."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Return the description as DescribeProcessingJob shows it."""
        return {**self.describe_request(), **self.summary()}

    def describe_request(self) -> dict[str, Any]:
        """Return what was asked for, with what AWS adds to it."""
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
        """Return the part of the description that does not repeat the request: what lists show, and are ordered by."""
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
        """Note what the programs say of their end."""
        with self._changed:
            self._move(replace(self._progress, exit_message=message))
