"""A platform on disk that is killed: what the next one on the same directory knows of its jobs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from estimators.local import LocalSageMaker
from estimators.local.errors import LocalPlatformError
from tests.estimators.local.processes import arguments_of, processes_of
from tests.estimators.local.submitted_jobs import await_end, await_that, describe, job_request, messages

METRIC = {"MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]}
SAVES = (
    "cat /opt/ml/checkpoints/life 2>/dev/null && exit 0; "
    "echo saved > /opt/ml/checkpoints/life; echo loss=0.25; while :; do sleep 0.1; done"
)


def request(platform: LocalSageMaker, name: str, script: str, **changes: Any) -> dict[str, Any]:
    asked = job_request(platform, name, script, **changes)
    return {**asked, "AlgorithmSpecification": {**asked["AlgorithmSpecification"], **METRIC}}


def kill(platform: LocalSageMaker) -> None:
    os.kill(platform.server_pid, signal.SIGKILL)
    platform.stop()


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_a_killed_platform_s_jobs_are_known_to_the_next_and_spot_jobs_go_on(tmp_path: Path) -> None:
    with LocalSageMaker(tmp_path, storage="disk", grace_seconds=60) as platform:
        client = platform.boto_session.client("sagemaker")
        arn = client.create_training_job(**request(platform, "done", "echo said; echo loss=0.5"))["TrainingJobArn"]
        client.add_tags(ResourceArn=arn, Tags=[{"Key": "team", "Value": "ü"}])
        done = await_end(platform, "done")
        spot = {
            "EnableManagedSpotTraining": True,
            "StoppingCondition": {"MaxRuntimeInSeconds": 300, "MaxWaitTimeInSeconds": 300},
            "CheckpointConfig": {"S3Uri": f"s3://{platform.default_bucket}/spot"},
        }
        retried = {
            "RetryStrategy": {"MaximumRetryAttempts": 1},
            "CheckpointConfig": {"S3Uri": f"s3://{platform.default_bucket}/retried"},
        }
        client.create_training_job(**request(platform, "spot", SAVES, **spot))
        client.create_training_job(**request(platform, "retried", SAVES, **retried))
        client.create_training_job(**request(platform, "plain", "while :; do sleep 0.1; done"))
        client.create_training_job(**request(platform, "stopped", "trap '' TERM; echo up; while :; do sleep 0.1; done"))
        s3 = platform.boto_session.client("s3")
        for prefix in ("spot/", "retried/"):
            await_that(lambda: s3.list_objects_v2(Bucket=platform.default_bucket, Prefix=prefix).get("Contents"))  # noqa: B023
        await_that(lambda: "up" in messages(platform, "stopped"))
        for saves in ("spot", "retried"):
            await_that(lambda: "loss=0.25" in messages(platform, saves))  # noqa: B023
        client.stop_training_job(TrainingJobName="stopped")
        kill(platform)
    with LocalSageMaker(tmp_path, storage="disk") as platform:
        client = platform.boto_session.client("sagemaker")
        known = describe(platform, "done")
        assert {**known, "ResponseMetadata": None} == {**done, "ResponseMetadata": None}
        assert known["FinalMetricDataList"][0]["Value"] == 0.5
        assert client.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "ü"}]
        assert messages(platform, "done") == ["said", "loss=0.5"]
        plain = describe(platform, "plain")
        assert plain["TrainingJobStatus"] == "Failed"
        assert "The local platform ended while the job ran" in plain["FailureReason"]
        assert describe(platform, "stopped")["TrainingJobStatus"] == "Stopped"
        with pytest.raises(ClientError, match="ResourceInUse"):
            client.create_training_job(**request(platform, "done", "true"))
        went_on = await_end(platform, "spot")
        assert went_on["TrainingJobStatus"] == "Completed"
        states = [each["Status"] for each in went_on["SecondaryStatusTransitions"]]
        assert states[states.index("Interrupted") :] == [
            "Interrupted",
            "Starting",
            "Downloading",
            "Training",
            "Uploading",
            "Completed",
        ]
        assert sorted(messages(platform, "spot")) == ["loss=0.25", "saved"]
        assert await_end(platform, "retried")["TrainingJobStatus"] == "Completed"
        assert sorted(messages(platform, "retried")) == [
            "[platform] Retry 1 of 1, as RetryStrategy asks, after InternalServerError: The local platform ended while "
            "the job ran, and a new one has taken over.",
            "loss=0.25",
            "saved",
        ]
        assert went_on["FinalMetricDataList"][0]["Value"] == 0.25
        client.delete_training_job(TrainingJobName="plain")
        platform.boto_session.client("logs").delete_log_stream(
            logGroupName="/aws/sagemaker/TrainingJobs",
            logStreamName=next(iter(streams(platform, "done"))),
        )
    with LocalSageMaker(tmp_path, storage="disk") as platform:
        with pytest.raises(ClientError, match="there is no training job plain"):
            describe(platform, "plain")
        assert messages(platform, "done") == []
        assert describe(platform, "spot")["BillableTimeInSeconds"] == went_on["BillableTimeInSeconds"]


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_a_value_that_the_log_has_is_not_lost_with_the_platform(tmp_path: Path) -> None:
    script = "echo loss=1; while ! [ -e /opt/ml/checkpoints/more ]; do sleep 0.1; done; echo loss=2; sleep 300"
    with LocalSageMaker(tmp_path, storage="disk") as platform:
        client = platform.boto_session.client("sagemaker")
        checkpoints = {"CheckpointConfig": {"S3Uri": f"s3://{platform.default_bucket}/more"}}
        client.create_training_job(**request(platform, "job", script, **checkpoints))
        await_that(lambda: describe(platform, "job").get("FinalMetricDataList"))
        (matcher,) = [pid for pid in processes_of(platform.server_pid) if "matcher.py" in " ".join(arguments_of(pid))]
        os.kill(matcher, signal.SIGSTOP)
        (directory,) = tmp_path.glob("**/checkpoints")
        (directory / "more").touch()
        await_that(lambda: messages(platform, "job") == ["loss=1", "loss=2"])
        kill(platform)
        os.kill(matcher, signal.SIGKILL)  # a stopped process does not end with its input
    with LocalSageMaker(tmp_path, storage="disk") as platform:
        assert describe(platform, "job")["FinalMetricDataList"][0]["Value"] == 2


def streams(platform: LocalSageMaker, job: str) -> list[str]:
    found = platform.boto_session.client("logs").describe_log_streams(
        logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix=f"{job}/"
    )
    return [stream["logStreamName"] for stream in found["logStreams"]]


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_a_file_of_jobs_that_is_damaged_is_an_error_with_its_name(tmp_path: Path) -> None:
    with LocalSageMaker(tmp_path, storage="disk"):
        pass
    for path in (tmp_path / "records").iterdir():
        path.write_bytes(b"no database " * 1000)
    with pytest.raises(
        LocalPlatformError,
        match=rf"{tmp_path}/records/jobs.sqlite, which remembers jobs, can't be used: .* Move its directory away",
    ):
        LocalSageMaker(tmp_path, storage="disk").start()
