"""The members of a job's own trial component, from the job's request and its progress.

AWS documents neither the names of the parameters and artifacts nor the form of the status message; they are copied from
AWS's own trial components.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from estimators.local.engine.hosted.metric_statistics import MetricSummary
from estimators.local.engine.hosted.record import HostedRecord
from estimators.local.engine.hosted.request import HostedRequest
from estimators.metric_definition import finite

_MOST_MESSAGE = 1024
_MEDIA_TYPE = re.compile(r"[-\w]+/[-\w+]+")


@dataclass(kw_only=True, slots=True, frozen=True)
class JobToTrack:
    """A job that is about to be created."""

    request: HostedRequest
    arn: str

    @property
    def is_training(self) -> bool:
        """Whether it is a training job; otherwise it is a processing job."""
        return ":training-job/" in self.arn

    @property
    def component(self) -> str:
        """The name of its trial component."""
        return f"{self.request.name}-aws-{'training' if self.is_training else 'processing'}-job"

    @property
    def experiment_config(self) -> Mapping[str, str]:
        """The request's ExperimentConfig; empty if absent."""
        given: Mapping[str, str] = self.request.members.get("ExperimentConfig", {})
        return given

    def members(self) -> dict[str, Any]:
        """Return the members of its trial component at the job's creation."""
        kind = "SageMakerTrainingJob" if self.is_training else "SageMakerProcessingJob"
        inputs, outputs = (_training if self.is_training else _processing)(self.request.members)
        return {
            "DisplayName": self.experiment_config.get("TrialComponentDisplayName", self.component),
            "Source": {"SourceArn": self.arn, "SourceType": kind},
            "Parameters": dict(self._parameters()),
            "InputArtifacts": inputs,
            "OutputArtifacts": outputs,
        }

    def _parameters(self) -> Iterator[tuple[str, dict[str, Any]]]:
        members = self.request.members
        for name, text in members.get("HyperParameters", {}).items():
            yield name, _parameter(text)
        yield "SageMaker.ImageUri", {"StringValue": self.request.image}
        resources = members["ResourceConfig"] if self.is_training else members["ProcessingResources"]["ClusterConfig"]
        is_open = "InstancePreferences" in resources  # the instance type is not chosen yet
        for group in () if is_open else self.request.groups:
            prefix = "SageMaker." if len(self.request.groups) == 1 else f"SageMaker.InstanceGroups.{group.name}."
            yield f"{prefix}InstanceType", {"StringValue": group.instance_type}
            yield f"{prefix}InstanceCount", {"NumberValue": float(group.count)}
        if "VolumeSizeInGB" in resources:
            yield "SageMaker.VolumeSizeInGB", {"NumberValue": float(resources["VolumeSizeInGB"])}


@dataclass(kw_only=True, slots=True, frozen=True)
class JobNow:
    """The progress of a job, as its trial component shows it."""

    state: Mapping[str, Any]
    """Status, StartTime and EndTime."""
    outputs: Mapping[str, Any]
    """The artifacts that the job has left."""
    metrics: Mapping[tuple[str, str], MetricSummary]
    """By the job's ARN and the metric's name."""
    modified: datetime
    """When the job last changed."""

    @classmethod
    def of(cls, job: HostedRecord[HostedRequest]) -> JobNow:
        """Return the progress of a job."""
        shown = job.summary()
        word = "Training" if "TrainingJobStatus" in shown else "Processing"
        status, reason = shown[f"{word}JobStatus"], shown.get("FailureReason", "")
        secondary = f", secondary status: {shown['SecondaryStatus']}" if "SecondaryStatus" in shown else ""
        message = f"Status: {status}{secondary}, failure reason: {reason}."
        times = {"StartTime": shown.get(f"{word}StartTime"), "EndTime": shown.get(f"{word}EndTime")}
        model = shown.get("ModelArtifacts", {}).get("S3ModelArtifacts")
        return cls(
            state={
                # On one line: the SDK sends the message back, and the model allows no line break in a request.
                "Status": {"PrimaryStatus": status, "Message": " ".join(message.splitlines())[:_MOST_MESSAGE]},
                **{name: time for name, time in times.items() if time is not None},
            },
            outputs={"SageMaker.ModelArtifact": {"Value": model}} if model else {},
            metrics={(job.arn, name): summary for name, summary in job.metrics.summaries().items()},
            modified=shown["LastModifiedTime"],
        )


def _parameter(text: str) -> dict[str, Any]:
    number = finite(text)
    return {"StringValue": text} if number is None else {"NumberValue": number}


def _training(members: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the input artifacts of a training job, and its output artifacts other than the model."""
    code = _text(members.get("HyperParameters", {}).get("sagemaker_submit_directory", ""))
    inputs = {"code": {"Value": code}} if code.startswith("s3://") else {}
    for channel in members.get("InputDataConfig", ()):
        kind = channel.get("ContentType", "")
        media = {"MediaType": kind} if len(kind) <= 64 and _MEDIA_TYPE.fullmatch(kind) else {}
        inputs[channel["ChannelName"]] = {**media, "Value": channel["DataSource"]["S3DataSource"]["S3Uri"]}
    debugger = members.get("DebugHookConfig", {}).get("S3OutputPath")
    return inputs, {"SageMaker.DebugHookOutput": {"Value": debugger}} if debugger else {}


def _processing(members: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the input artifacts and the output artifacts of a processing job."""
    inputs, outputs = members.get("ProcessingInputs", ()), members.get("ProcessingOutputConfig", {}).get("Outputs", ())
    return (
        {each["InputName"]: {"Value": each["S3Input"]["S3Uri"]} for each in inputs if "S3Input" in each},
        {each["OutputName"]: {"Value": each["S3Output"]["S3Uri"]} for each in outputs if "S3Output" in each},
    )


def _text(value: str) -> str:
    """Return a hyperparameter's text, which the SDK encodes as JSON; empty for any other JSON."""
    try:
        decoded = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return decoded if isinstance(decoded, str) else ""
