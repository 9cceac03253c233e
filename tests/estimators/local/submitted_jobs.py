"""Training jobs that are sent to a platform through its API, and what becomes of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from estimators.local import LocalSageMaker

ENDED = ("Completed", "Failed", "Stopped")


def job_request(
    platform: LocalSageMaker, name: str, script: str, *, image: str = "an-image", hosts: int = 1, **changes: Any
) -> dict[str, Any]:
    """CreateTrainingJob's request for a shell script that is run on each host."""
    return {
        "TrainingJobName": name,
        "RoleArn": platform.role,
        "AlgorithmSpecification": {
            "TrainingImage": image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["sh", "-c"],
            "ContainerArguments": [script],
        },
        "OutputDataConfig": {"S3OutputPath": f"s3://{platform.default_bucket}/out"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": hosts, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 300},
        **changes,
    }


def submit(platform: LocalSageMaker, script: str, **changes: Any) -> str:
    """Start a job under a name of its own, which is returned; see ``job_request``."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    platform.boto_session.client("sagemaker").create_training_job(**job_request(platform, name, script, **changes))
    return name


def describe(platform: LocalSageMaker, name: str) -> dict[str, Any]:
    return dict(platform.boto_session.client("sagemaker").describe_training_job(TrainingJobName=name))


def messages(platform: LocalSageMaker, name: str, host: str = "") -> list[str]:
    """The log's lines of a job, or of one of its hosts; of several lives one after the other."""
    logs, group = platform.boto_session.client("logs"), "/aws/sagemaker/TrainingJobs"
    prefix = f"{name}/{host}-" if host else f"{name}/"
    try:
        events = logs.filter_log_events(logGroupName=group, logStreamNamePrefix=prefix)["events"]
    except logs.exceptions.ResourceNotFoundException:  # no host has run yet
        return []
    return [event["message"] for event in events]


def await_that(
    condition: Callable[[], Any], what: Callable[[], object] = str, *, seconds: float = 60, pause: float = 0.1
) -> Any:
    """What the condition says once it holds; ``what`` tells why it was waited for in vain."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(pause)
    return found


def await_end(
    platform: LocalSageMaker, name: str, what: Callable[[], object] = str, *, seconds: float = 60, pause: float = 0.1
) -> dict[str, Any]:
    """The job's description once it has ended."""

    def ended() -> dict[str, Any] | None:
        job = describe(platform, name)
        return job if job["TrainingJobStatus"] in ENDED else None

    return dict(await_that(ended, what, seconds=seconds, pause=pause))
