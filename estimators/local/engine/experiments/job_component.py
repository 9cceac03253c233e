"""What a job's own trial component shows: of its request, and of how far it has come.

AWS documents neither the names of the parameters and artifacts nor the form of the status's message; they are those
that its trial components show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from estimators.local.engine.hosted_job import HostedJob
from estimators.local.engine.job_request import JobRequest
from estimators.local.engine.metric_summary import MetricSummary
from estimators.metric_definition import finite

_MOST_MESSAGE = 1024
_MEDIA_TYPE = re.compile(r"[-\w]+/[-\w+]+")


@dataclass(kw_only=True, slots=True, frozen=True)
class JobToTrack:
    """A job that is about to be created."""

    request: JobRequest
    arn: str

    @property
    def is_training(self) -> bool:
        """Whether it is a training job, and no processing job."""
        return ":training-job/" in self.arn

    @property
    def component(self) -> str:
        """The name of its trial component."""
        return f"{self.request.name}-aws-{'training' if self.is_training else 'processing'}-job"

    @property
    def experiment_config(self) -> Mapping[str, str]:
        """What the request says of experiments; empty if it says nothing."""
        given: Mapping[str, str] = self.request.members.get("ExperimentConfig", {})
        return given

    def members(self) -> dict[str, Any]:
        """Return what its trial component shows from the beginning."""
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
        is_open = "InstancePreferences" in resources  # it is not known yet which type it will be
        for group in () if is_open else self.request.groups:
            prefix = "SageMaker." if len(self.request.groups) == 1 else f"SageMaker.InstanceGroups.{group.name}."
            yield f"{prefix}InstanceType", {"StringValue": group.instance_type}
            yield f"{prefix}InstanceCount", {"NumberValue": float(group.count)}
        if "VolumeSizeInGB" in resources:
            yield "SageMaker.VolumeSizeInGB", {"NumberValue": float(resources["VolumeSizeInGB"])}


@dataclass(kw_only=True, slots=True, frozen=True)
class JobNow:
    """How far a job has come, as its trial component shows it."""

    state: Mapping[str, Any]
    """Status, StartTime and EndTime."""
    outputs: Mapping[str, Any]
    """The artifacts that it has left."""
    metrics: Mapping[tuple[str, str], MetricSummary]
    """By its ARN and their names."""
    modified: datetime
    """When it last changed."""

    @classmethod
    def of(cls, job: HostedJob[JobRequest]) -> JobNow:
        """Return how far a job is."""
        shown = job.summary()
        word = "Training" if "TrainingJobStatus" in shown else "Processing"
        status, reason = shown[f"{word}JobStatus"], shown.get("FailureReason", "")
        secondary = f", secondary status: {shown['SecondaryStatus']}" if "SecondaryStatus" in shown else ""
        message = f"Status: {status}{secondary}, failure reason: {reason}."
        times = {"StartTime": shown.get(f"{word}StartTime"), "EndTime": shown.get(f"{word}EndTime")}
        model = shown.get("ModelArtifacts", {}).get("S3ModelArtifacts")
        return cls(
            state={
                # On one line: the model allows no other message in a request, and the SDK sends back what it has read.
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
    """Return the artifacts that go into a training job, and where those go that come out beside the model."""
    code = _text(members.get("HyperParameters", {}).get("sagemaker_submit_directory", ""))
    inputs = {"code": {"Value": code}} if code.startswith("s3://") else {}
    for channel in members.get("InputDataConfig", ()):
        kind = channel.get("ContentType", "")
        media = {"MediaType": kind} if len(kind) <= 64 and _MEDIA_TYPE.fullmatch(kind) else {}
        inputs[channel["ChannelName"]] = {**media, "Value": channel["DataSource"]["S3DataSource"]["S3Uri"]}
    debugger = members.get("DebugHookConfig", {}).get("S3OutputPath")
    return inputs, {"SageMaker.DebugHookOutput": {"Value": debugger}} if debugger else {}


def _processing(members: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the artifacts that go into a processing job, and those that come out."""
    inputs, outputs = members.get("ProcessingInputs", ()), members.get("ProcessingOutputConfig", {}).get("Outputs", ())
    return (
        {each["InputName"]: {"Value": each["S3Input"]["S3Uri"]} for each in inputs if "S3Input" in each},
        {each["OutputName"]: {"Value": each["S3Output"]["S3Uri"]} for each in outputs if "S3Output" in each},
    )


def _text(value: str) -> str:
    """Return the text that a hyperparameter says, which the SDK writes as JSON."""
    try:
        decoded = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return decoded if isinstance(decoded, str) else ""
