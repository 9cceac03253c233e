"""A handle on a job: its log, its end, and what it raises."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import boto3
import pytest
from moto import mock_aws

from estimators import training_job
from estimators.errors import EstimatorError, TrainingJobFailed, TrainingJobStopped
from estimators.log_reader import LOG_GROUP, LogReader
from estimators.training_job import TrainingJob

NAME = "digits-1"


@dataclass
class Platform:
    """SageMaker by script, a description for each look at the job; the logs are moto's."""

    logs: Any
    descriptions: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    arrives: list[tuple[str, str]] = field(default_factory=list)
    """A line of the log for each look: host and message."""
    clock: int = field(default_factory=lambda: int(time.time() * 1000))

    @property
    def boto_session(self) -> Platform:
        return self

    @property
    def sagemaker_client(self) -> Platform:
        return self

    def client(self, service: str) -> Any:
        assert service == "logs"
        return self.logs

    def describe_training_job(self, TrainingJobName: str) -> dict[str, Any]:  # noqa: N803
        assert TrainingJobName == NAME
        if self.arrives:
            host, message = self.arrives.pop(0)
            self.log(host, message)
        return self.descriptions.pop(0) if len(self.descriptions) > 1 else self.descriptions[0]

    def stop_training_job(self, TrainingJobName: str) -> None:  # noqa: N803
        self.stopped.append(TrainingJobName)

    def log(self, host: str, *messages: str, life: int = 1) -> None:
        stream = f"{NAME}/{host}-170000000{life}"
        with suppress(self.logs.exceptions.ResourceAlreadyExistsException):
            self.logs.create_log_stream(logGroupName=LOG_GROUP, logStreamName=stream)
        for message in messages:
            self.clock += 1
            event = {"timestamp": self.clock, "message": message}
            self.logs.put_log_events(logGroupName=LOG_GROUP, logStreamName=stream, logEvents=[event])


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    monkeypatch.setattr(training_job, "_SHORTEST_POLL", 0.01)
    with mock_aws():
        logs = boto3.client("logs", region_name="us-east-1")
        logs.create_log_group(logGroupName=LOG_GROUP)
        yield Platform(logs=logs)


def described(*statuses: str, status: str = "InProgress", **others: Any) -> dict[str, Any]:
    start = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    transitions = [
        {"Status": name, "StartTime": start.replace(second=number), "StatusMessage": f"{name} is on"}
        for number, name in enumerate(statuses)
    ]
    return {
        "TrainingJobArn": f"arn:aws:sagemaker:us-east-1:123456789012:training-job/{NAME}",
        "TrainingJobStatus": status,
        "SecondaryStatus": statuses[-1],
        "SecondaryStatusTransitions": transitions,
        **others,
    }


COMPLETED = described("Starting", "Training", "Completed", status="Completed")


def test_wait_shows_lines_and_changes_of_status_as_they_come(platform: Platform) -> None:
    platform.descriptions = [described("Starting"), described("Starting", "Training"), COMPLETED]
    platform.arrives = [("algo-1", "one"), ("algo-2", "two [not markup] " + "x" * 200), ("algo-1", "three")]
    shown = io.StringIO()
    with redirect_stdout(shown):
        TrainingJob(NAME, platform).wait()
    lines = shown.getvalue().splitlines()
    assert [line.partition(" ")[2] if line[2] == ":" else line for line in lines] == [
        f"training job {NAME}",
        "Starting: Starting is on",
        "algo-1 | one",
        "Training: Training is on",
        "algo-2 | two [not markup] " + "x" * 200,
        "Completed: Completed is on",
        "algo-1 | three",
    ]


def test_without_logs_nothing_is_shown(platform: Platform) -> None:
    platform.descriptions = [described("Training"), COMPLETED]
    shown = io.StringIO()
    with redirect_stdout(shown):
        TrainingJob(NAME, platform).wait(logs=False)
    assert shown.getvalue() == ""


def test_a_failed_job_raises_its_reason_and_says_where_its_log_is(platform: Platform) -> None:
    platform.descriptions = [described("Failed", status="Failed", FailureReason="AlgorithmError: rank 3: ValueError")]
    with pytest.raises(TrainingJobFailed) as failure:
        TrainingJob(NAME, platform).wait(logs=False)
    assert not isinstance(failure.value, TrainingJobStopped)
    assert failure.value.reason == "AlgorithmError: rank 3: ValueError"
    assert (failure.value.job_name, failure.value.status, failure.value.secondary_status) == (NAME, "Failed", "Failed")
    assert "AlgorithmError: rank 3" in str(failure.value)
    assert LOG_GROUP in str(failure.value)


@pytest.mark.parametrize(
    ("secondary", "said"),
    [
        ("MaxRuntimeExceeded", "max_run"),
        ("MaxWaitTimeExceeded", "max_wait"),
        ("Stopped", "StopTrainingJob"),
        ("Interrupted", "spot instances"),
        ("SomethingNew", "it was stopped"),
    ],
)
def test_a_stopped_job_raises_what_stopped_it(platform: Platform, secondary: str, said: str) -> None:
    platform.descriptions = [described(secondary, status="Stopped")]
    with pytest.raises(TrainingJobStopped) as stop:
        TrainingJob(NAME, platform).wait(logs=False)
    assert said in stop.value.reason
    assert said in str(stop.value)
    assert stop.value.secondary_status == secondary


def test_an_interruption_from_the_keyboard_leaves_the_job_running(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    platform.descriptions = [described("Training")]

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        TrainingJob(NAME, platform).wait(logs=False)
    assert not platform.stopped
    assert f"{NAME} goes on without you" in caplog.text
    assert f"TrainingJob.attach('{NAME}').stop()" in caplog.text
    assert f"TrainingJob.attach('{NAME}').wait()" in caplog.text


def test_stop_is_sent_to_a_running_job_only(platform: Platform) -> None:
    platform.descriptions = [described("Training"), COMPLETED]
    job = TrainingJob(NAME, platform)
    job.stop()
    job.stop()
    assert platform.stopped == [NAME]


def test_the_handle_tells_what_the_job_has(platform: Platform) -> None:
    platform.descriptions = [
        described(
            "Completed",
            status="Completed",
            ModelArtifacts={"S3ModelArtifacts": "s3://jobs/model.tar.gz"},
            CheckpointConfig={"S3Uri": "s3://jobs/checkpoints"},
            FinalMetricDataList=[{"MetricName": "loss", "Value": 0.5}],
        )
    ]
    job = TrainingJob(NAME, platform)
    assert job.arn.endswith(f"/{NAME}")
    assert (job.status, job.secondary_status) == ("Completed", "Completed")
    assert job.model_data == "s3://jobs/model.tar.gz"
    assert job.checkpoint_s3_uri == "s3://jobs/checkpoints"
    assert job.metrics() == {"loss": 0.5}


def test_a_job_without_a_model_says_so(platform: Platform) -> None:
    platform.descriptions = [described("Training")]
    with pytest.raises(EstimatorError, match="no model: it is InProgress"):
        _ = TrainingJob(NAME, platform).model_data
    assert TrainingJob(NAME, platform).checkpoint_s3_uri is None
    assert TrainingJob(NAME, platform).metrics() == {}


def test_the_log_of_all_lives_comes_in_the_order_of_time(platform: Platform) -> None:
    platform.log("algo-1", "a")
    platform.log("algo-2", "b")
    platform.log("algo-1", "c")
    platform.log("algo-2", "d", life=2)
    platform.log("algo-1", "e", life=2)
    platform.descriptions = [COMPLETED]
    assert list(TrainingJob(NAME, platform).logs()) == [
        ("algo-1", "a"),
        ("algo-2", "b"),
        ("algo-1", "c"),
        ("algo-2", "d"),
        ("algo-1", "e"),
    ]


def test_each_line_is_read_once(platform: Platform) -> None:
    reader = LogReader(platform.logs, NAME)
    assert list(reader.unread()) == []
    platform.log("algo-1", "a", "b")
    assert [line.message for line in reader.unread()] == ["a", "b"]
    platform.log("algo-1", "c")
    assert [line.message for line in reader.unread()] == ["c"]
    assert list(reader.unread()) == []


def test_streams_of_jobs_with_a_longer_name_are_not_read(platform: Platform) -> None:
    platform.logs.create_log_stream(logGroupName=LOG_GROUP, logStreamName=f"{NAME}0/algo-1-1")
    assert list(LogReader(platform.logs, NAME).unread()) == []


def test_a_log_that_does_not_exist_yet_is_empty() -> None:
    with mock_aws():
        assert list(LogReader(boto3.client("logs", region_name="us-east-1"), NAME).unread()) == []


def test_looks_grow_rarer_with_time(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_job, "_SHORTEST_POLL", 0.25)
    now, pauses = [0.0], []
    platform.descriptions = [*[described("Training")] * 2000, COMPLETED]

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("time.sleep", pause)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    TrainingJob(NAME, platform).wait(logs=False)
    assert (pauses[0], pauses[-1]) == (0.25, 5.0)
    assert pauses == sorted(pauses)
