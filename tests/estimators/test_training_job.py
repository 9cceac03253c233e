"""A handle on a job: its log, its end, and what it raises."""

from __future__ import annotations

import asyncio
import io
import json
import re
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from moto import mock_aws

from estimators import api_retries
from estimators.errors import EstimatorError, TrainingJobFailed, TrainingJobStopped
from estimators.job_handle import events, follower
from estimators.job_handle.events import JobEvent, MetricValue, StatusChange
from estimators.log_reader import LOG_GROUP, LogLine, LogReader
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
        assert service in ("logs", "s3")
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
    monkeypatch.setattr(follower, "_SHORTEST_POLL", 0.01)
    with mock_aws():
        logs = boto3.client("logs", region_name="us-east-1")
        logs.create_log_group(logGroupName=LOG_GROUP)
        yield Platform(logs=logs)


START = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def described(*statuses: str, status: str = "InProgress", start: datetime = START, **others: Any) -> dict[str, Any]:
    transitions = [
        {"Status": name, "StartTime": start + timedelta(seconds=number), "StatusMessage": f"{name} is on"}
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


def test_a_failed_job_of_a_local_platform_names_no_log_on_aws(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "ends_with_program", True, raising=False)
    platform.descriptions = [described("Failed", status="Failed", FailureReason="AlgorithmError: ValueError")]
    with pytest.raises(TrainingJobFailed) as failure:
        TrainingJob(NAME, platform).wait(logs=False)
    told = str(failure.value)
    assert f"TrainingJob.attach('{NAME}', sagemaker_session) has .logs() and .download(directory), until its" in told
    assert told.endswith("use LocalSageMaker(directory, storage='disk')")
    assert "CloudWatch" not in told


def test_a_failed_job_of_a_platform_on_disk_names_the_directory(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "ends_with_program", True, raising=False)
    monkeypatch.setattr(platform, "kept_in", "/kept", raising=False)
    platform.descriptions = [described("Failed", status="Failed", FailureReason="AlgorithmError: ValueError")]
    with pytest.raises(
        TrainingJobFailed, match=r"on this platform or a later LocalSageMaker\('/kept', storage='disk'\)$"
    ):
        TrainingJob(NAME, platform).wait(logs=False)


def test_what_a_failed_job_has_written_has_no_power_over_the_terminal_of_who_waits(platform: Platform) -> None:
    reason = "AlgorithmError: \x1b[31mValueError\x1b[0m:\0 \x1b]52;c;Y2xpcA==\x07\x9b2J\r\n  in line 3\rgood"
    platform.descriptions = [described("Failed", status="Failed", FailureReason=reason)]
    with pytest.raises(TrainingJobFailed) as failure:
        TrainingJob(NAME, platform).wait(logs=False)
    assert "(Failed): AlgorithmError: ValueError: 2J\n  in line 3\ngood\nIts log" in str(failure.value)
    assert failure.value.reason == reason, "the data stays what the job wrote"


def test_an_error_that_quotes_a_name_has_no_power_over_the_terminal() -> None:
    assert str(EstimatorError("s3://b/\x1b]0;title\x07key is refused")) == "s3://b/key is refused"


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
    assert f"{NAME} continues without you" in caplog.text
    assert f"TrainingJob.attach('{NAME}').stop()" in caplog.text
    assert f"TrainingJob.attach('{NAME}').wait()" in caplog.text


def test_a_cancelled_wait_tells_how_to_wait_again_on_a_local_platform(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    platform.descriptions = [described("Training")]
    monkeypatch.setattr(platform, "ends_with_program", True, raising=False)

    async def interrupted() -> None:
        await asyncio.wait_for(TrainingJob(NAME, platform).wait_async(), timeout=0.1)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(interrupted())
    assert f"{NAME} continues until its local platform ends" in caplog.text
    for method in ("stop", "wait"):
        assert f"TrainingJob.attach('{NAME}', sagemaker_session).{method}()" in caplog.text


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
    assert job.final_metrics() == {"loss": 0.5}


@pytest.mark.parametrize("status", ["InProgress", "Stopping", "Failed", "Stopped"])
def test_a_job_without_a_model_says_so_though_its_place_is_known(platform: Platform, status: str) -> None:
    place = {"S3ModelArtifacts": "s3://jobs/model.tar.gz"}
    platform.descriptions = [described("Starting", status=status, ModelArtifacts=place)]
    with pytest.raises(EstimatorError, match=f"no model: it is {status}"):
        _ = TrainingJob(NAME, platform).model_data


def test_a_job_without_checkpoints_and_metrics_has_none(platform: Platform) -> None:
    platform.descriptions = [described("Training")]
    assert TrainingJob(NAME, platform).checkpoint_s3_uri is None
    assert TrainingJob(NAME, platform).final_metrics() == {}


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


@pytest.mark.parametrize(("minutes_ago", "shown"), [(1, ["1", "2", "3"]), (10, ["1"])])
def test_the_last_lines_of_a_job_that_has_just_ended_are_waited_for(
    platform: Platform, minutes_ago: float, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(time=time.time, monotonic=lambda: now[0], sleep=pause)  # however slow this machine is
    monkeypatch.setattr(follower, "time", clock)
    monkeypatch.setattr(follower, "_SHORTEST_POLL", 0.25)
    start = datetime.now(timezone.utc) - timedelta(minutes=minutes_ago)
    statuses = ("Starting", *["Training"] * 20, "Completed")  # a second each
    platform.descriptions = [described(*statuses, status="Completed", start=start)]
    platform.arrives = [("algo-1", line) for line in ("1", "2", "3")]
    assert [line for _, line in TrainingJob(NAME, platform).logs()] == shown


@pytest.mark.parametrize("beside_other_work", [False, True])
def test_a_local_platform_tells_of_each_change_and_its_log_is_whole_at_the_end(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, beside_other_work: bool
) -> None:
    """Nothing sleeps: `await_change` returns at each change, and the last lines are not waited for."""
    asked: list[tuple[str, int]] = []

    def await_change(job_name: str, transitions: int, seconds: float) -> None:
        assert 0 < seconds <= 5
        asked.append((job_name, transitions))

    def refuse(_: float) -> None:
        raise AssertionError("the follower sleeps")

    monkeypatch.setattr(platform, "await_change", await_change, raising=False)
    monkeypatch.setattr(follower, "time", SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=refuse))
    now = datetime.now(timezone.utc) - timedelta(seconds=100)
    whole = ("Starting", *["Training"] * 100, "Completed")
    platform.descriptions = [described(*whole[:2], start=now), described(*whole, status="Completed", start=now)]
    platform.arrives = [("algo-1", "1"), ("algo-1", "2"), ("algo-1", "late")]
    job = TrainingJob(NAME, platform)

    async def collect() -> list[JobEvent]:
        return [event async for event in job.events_async()]

    events = asyncio.run(collect()) if beside_other_work else list(job.events())
    assert [event.message for event in events if isinstance(event, LogLine)] == ["1", "2"]
    assert asked == [(NAME, 2)]


def test_streams_of_jobs_with_a_longer_name_are_not_read(platform: Platform) -> None:
    platform.logs.create_log_stream(logGroupName=LOG_GROUP, logStreamName=f"{NAME}0/algo-1-1")
    assert list(LogReader(platform.logs, NAME).unread()) == []


def test_a_log_that_does_not_exist_yet_is_empty() -> None:
    with mock_aws():
        assert list(LogReader(boto3.client("logs", region_name="us-east-1"), NAME).unread()) == []


def test_looks_grow_rarer_with_time(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_SHORTEST_POLL", 0.25)
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


STEPS = {"Name": "step", "Regex": "at ([0-9]+)"}
LOSS = {"Name": "loss", "Regex": "loss=([0-9.]+)"}


def measured(*statuses: str, definitions: Sequence[dict[str, str]] = (LOSS,), **others: Any) -> dict[str, Any]:
    specification = {"TrainingInputMode": "File", "MetricDefinitions": list(definitions)}
    return described(*statuses, AlgorithmSpecification=specification, **others)


def test_events_are_changes_of_status_lines_and_the_values_in_them(platform: Platform) -> None:
    platform.descriptions = [measured("Training"), measured("Training", "Completed", status="Completed")]
    platform.arrives = [("algo-1", "step=4 epoch=1 loss=0.5"), ("algo-1", "done")]
    events = list(TrainingJob(NAME, platform).events())
    assert [type(event) for event in events] == [StatusChange, LogLine, MetricValue, StatusChange, LogLine]
    line, value = events[1:3]
    assert isinstance(line, LogLine)
    assert value == MetricValue(time=line.time, host="algo-1", step=4, epoch=1, metric="loss", value=0.5)
    assert line.time.timestamp() == pytest.approx(line.timestamp / 1000)
    assert events[3] == StatusChange(time=START + timedelta(seconds=1), status="Completed", message="Completed is on")


def test_metrics_are_all_values_of_the_log(platform: Platform) -> None:
    platform.log("algo-1", "step=4 epoch=0 loss=0.5", "loss=nan", "step=8 epoch=1 loss=0.25 of loss=7")
    platform.log("algo-2", "loss=1 without a step", "x" * 1000 + "loss=1")
    platform.descriptions = [measured("Training")]
    frame = TrainingJob(NAME, platform).metrics()
    assert list(frame.columns) == ["time", "host", "step", "epoch", "metric", "value"]
    assert frame["value"].tolist() == [0.5, 0.25, 1.0]
    assert frame["host"].tolist() == ["algo-1", "algo-1", "algo-2"]
    assert frame["step"].dropna().tolist() == [4, 8]
    assert str(frame["step"].dtype) == "Int64"
    assert str(frame["time"].dt.tz) == "UTC"
    assert frame["time"].is_monotonic_increasing


def test_a_definition_of_step_says_the_step_of_others(platform: Platform) -> None:
    platform.log("algo-1", "at 12 of 100, loss=0.5", "at 13", "epoch=0.5 loss=1")
    platform.descriptions = [measured("Training", definitions=[STEPS, LOSS])]
    frame = TrainingJob(NAME, platform).metrics()
    assert frame["metric"].tolist() == ["loss", "loss"]
    assert frame["step"].iloc[0] == 12
    assert frame["epoch"].iloc[1] == 0.5


def test_a_job_without_values_has_an_empty_table_and_no_plot(platform: Platform) -> None:
    platform.descriptions = [described("Training")]
    frame = TrainingJob(NAME, platform).metrics()
    assert (len(frame), str(frame["value"].dtype)) == (0, "float64")
    with pytest.raises(EstimatorError, match="no metric to plot"):
        TrainingJob(NAME, platform).plot()


def test_an_expression_that_python_cannot_read_is_left_out_with_a_warning(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    platform.log("algo-1", "loss=0.5 acc=1")
    java = {"Name": "acc", "Regex": r"acc=(\p{Digit}+)"}
    platform.descriptions = [measured("Training", definitions=[java, LOSS])]
    assert TrainingJob(NAME, platform).metrics()["metric"].tolist() == ["loss"]
    assert "no values of acc" in caplog.text


@pytest.mark.parametrize(("module", "call"), [("pandas", "metrics"), ("matplotlib", "plot")])
def test_a_package_that_is_missing_is_named(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, module: str, call: str
) -> None:
    platform.log("algo-1", "loss=0.5")
    platform.descriptions = [measured("Training")]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EstimatorError, match=f"{call}\\(\\) needs {module}.*pip install {module}"):
        getattr(TrainingJob(NAME, platform), call)()


def test_a_plot_marks_where_the_job_went_on(platform: Platform) -> None:
    start = datetime.now(timezone.utc) - timedelta(minutes=1)
    platform.clock = int(start.timestamp() + 1) * 1000 + 1000
    platform.log("algo-1", *(f"step={step} loss={1 / step} acc={step}" for step in (1, 2, 3)))
    platform.clock += 5000
    platform.log("algo-1", *(f"step={step} loss={1 / step} acc={step}" for step in (3, 4)), life=2)
    statuses = ("Starting", "Training", "Interrupted", "Starting", "Downloading", "Training", "Completed")
    accuracy = {"Name": "acc", "Regex": "acc=([0-9]+)"}
    platform.descriptions = [measured(*statuses, definitions=[LOSS, accuracy], start=start)]
    job = TrainingJob(NAME, platform)
    figure = job.plot()
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "acc"]
    first, second, mark = figure.axes[0].lines
    assert [list(first.get_xdata()), list(second.get_xdata())] == [[1, 2, 3], [3, 4]]
    assert mark.get_xdata() == [3, 3]
    assert [text.get_text() for text in figure.axes[0].texts] == ["attempt 2"]
    assert len(job.plot("loss").axes) == 1
    picture, size = job.plot("loss")._repr_png_()
    pixels = struct.unpack(">8x8xII", picture[:24])
    assert pixels == (2 * size["width"], 2 * size["height"]), "a notebook would show it blurred or too large"
    with pytest.raises(EstimatorError, match="no values of los; it has those of loss, acc"):
        job.plot("los")


def test_a_notebook_shows_the_jobs_state_or_why_it_is_not_known(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform.descriptions = [COMPLETED]
    assert f"<b>{NAME}</b> Completed<" in TrainingJob(NAME, platform)._repr_html_()
    refused = ClientError({"Error": {"Code": "AccessDenied", "Message": "not <you>"}}, "DescribeTrainingJob")
    monkeypatch.setattr(platform, "describe_training_job", Mock(side_effect=refused))
    assert "not &lt;you&gt;" in TrainingJob(NAME, platform)._repr_html_()


def test_who_listens_is_told_each_event_and_its_failure_does_not_end_the_waiting(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    platform.descriptions = [measured("Training"), measured("Training", "Completed", status="Completed")]
    platform.arrives = [("algo-1", "loss=0.5"), ("algo-1", "loss=0.25")]
    told: list[Any] = []

    def listen(event: Any) -> None:
        told.append(event)
        raise OSError("the chat is down")

    TrainingJob(NAME, platform).wait(logs=False, on_event=listen)
    assert [event.value for event in told if isinstance(event, MetricValue)] == [0.5, 0.25]
    assert sum(isinstance(event, StatusChange) for event in told) == 2
    assert caplog.text.count("OSError: the chat is down") == 1


def test_a_command_is_run_at_each_change_of_status(platform: Platform, tmp_path: Path) -> None:
    platform.descriptions = [measured("Training"), measured("Training", "Completed", status="Completed")]
    platform.arrives = [("algo-1", "loss=0.5")]
    TrainingJob(NAME, platform).wait(logs=False, on_event=f"cat >> {tmp_path}/told")
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert [(each["event"], each["job"], each["status"]) for each in told] == [
        ("status", NAME, "Training"),
        ("status", NAME, "Completed"),
    ]
    assert datetime.fromisoformat(told[0]["time"]) == START


@pytest.mark.parametrize(
    ("command", "seconds", "said"),
    [("echo no chat >&2; exit 3", 60.0, "exit code 3.*no chat"), ("sleep 60", 0.2, "ended after 0.2 seconds")],
)
def test_a_command_that_fails_is_a_warning(
    platform: Platform,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    command: str,
    seconds: float,
    said: str,
) -> None:
    monkeypatch.setattr(events, "COMMAND_SECONDS", seconds)
    platform.descriptions = [COMPLETED]
    TrainingJob(NAME, platform).wait(logs=False, on_event=command)
    assert len(re.findall(said, caplog.text)) == 1


def test_who_cannot_be_told_anything_is_refused(platform: Platform) -> None:
    platform.descriptions = [COMPLETED]
    with pytest.raises(EstimatorError, match="on_event is 7"):
        TrainingJob(NAME, platform).wait(on_event=7)  # type: ignore[arg-type]


def refused(code: str, status: int = 400) -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "DescribeTrainingJob")


@pytest.mark.parametrize(
    "error",
    [
        refused("ThrottlingException"),
        refused("InternalFailure", 500),
        EndpointConnectionError(endpoint_url="https://api.sagemaker.us-east-1.amazonaws.com/"),
    ],
)
def test_what_will_pass_does_not_end_the_waiting(platform: Platform, error: Exception) -> None:
    def describe() -> Iterator[Any]:
        yield from (error, error, described("Training"), error, COMPLETED)
        while True:
            yield COMPLETED

    with failing(platform, "describe_training_job", describe()), failing_logs(platform, error):
        platform.log("algo-1", "a")
        shown = io.StringIO()
        with redirect_stdout(shown):
            TrainingJob(NAME, platform).wait()
    assert "Completed" in shown.getvalue()
    assert shown.getvalue().count("algo-1 | a") == 1


ENDED_PLATFORM = EndpointConnectionError(endpoint_url="http://127.0.0.1:1/")


@pytest.mark.parametrize(
    ("error", "raised"), [(refused("AccessDeniedException"), ClientError), (ENDED_PLATFORM, EstimatorError)]
)
def test_what_will_not_pass_ends_the_waiting(platform: Platform, error: Exception, raised: type[Exception]) -> None:
    with failing(platform, "describe_training_job", repeat(error)), pytest.raises(raised):
        TrainingJob(NAME, platform).wait(logs=False)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ({}, r"Start the platform again \(smddp local up\)\.$"),
        ({"ends_with_program": True}, r"Use the job before that: .* LocalSageMaker\(directory, storage='disk'\) keeps"),
        (
            {"ends_with_program": True, "kept_in": "/kept"},
            r"/kept keeps .*LocalSageMaker\('/kept', storage='disk'\), .*TrainingJob.attach\('digits-1', platform",
        ),
    ],
    ids=["any", "in memory", "on disk"],
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda job: job.status,
        lambda job: list(job.logs()),
        lambda job: job.metrics(),
        lambda job: job.checkpoints(),
        lambda job: job.download("."),
        lambda job: job.resume(),
        lambda job: job.stop(),
    ],
    ids=["status", "logs", "metrics", "checkpoints", "download", "resume", "stop"],
)
def test_a_job_whose_local_platform_has_ended_says_so(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, ask: Callable[[TrainingJob], Any], kind: Any, said: str
) -> None:
    for name, value in kind.items():
        monkeypatch.setattr(platform, name, value, raising=False)
    with (
        failing(platform, "describe_training_job", repeat(ENDED_PLATFORM)),
        pytest.raises(EstimatorError, match=f"{NAME} can't be reached, because its local platform has ended .*{said}"),
    ):
        ask(TrainingJob(NAME, platform))


def test_a_local_platform_that_ends_while_its_log_is_read_says_so(platform: Platform) -> None:
    platform.descriptions = [described("Training")]
    platform.log("algo-1", "a")
    with failing_logs(platform, ENDED_PLATFORM), pytest.raises(EstimatorError, match="its local platform has ended"):
        list(TrainingJob(NAME, platform).logs())


def test_a_notebook_shows_that_the_local_platform_has_ended(platform: Platform) -> None:
    with failing(platform, "describe_training_job", repeat(ENDED_PLATFORM)):
        assert "its local platform has ended" in TrainingJob(NAME, platform)._repr_html_()


def wait(platform: Platform) -> None:
    TrainingJob(NAME, platform).wait(logs=False)


def wait_async(platform: Platform) -> None:
    asyncio.run(TrainingJob(NAME, platform).wait_async())


def follow(platform: Platform) -> None:
    list(TrainingJob(NAME, platform).events())


@pytest.mark.parametrize("waiting", [wait, wait_async, follow])
@pytest.mark.parametrize("error", [refused("ExpiredTokenException"), NoCredentialsError()])
def test_who_can_not_ask_any_more_is_told_that_the_job_goes_on_and_how_to_wait_again(
    platform: Platform, caplog: pytest.LogCaptureFixture, waiting: Callable[[Platform], None], error: Exception
) -> None:
    answers = chain([described("Training")], repeat(error))
    with failing(platform, "describe_training_job", answers), pytest.raises(type(error)):
        waiting(platform)
    (said,) = [record.message for record in caplog.records if "continues" in record.message]
    assert f"{NAME} continues without you" in said
    assert str(error) in said
    assert f"TrainingJob.attach('{NAME}').wait()" in said


@pytest.mark.parametrize(
    ("error", "raised"), [(refused("ValidationException"), ClientError), (ENDED_PLATFORM, EstimatorError)]
)
def test_nothing_is_said_of_a_job_that_is_not_there_any_more(
    platform: Platform, caplog: pytest.LogCaptureFixture, error: Exception, raised: type[Exception]
) -> None:
    with failing(platform, "describe_training_job", repeat(error)), pytest.raises(raised):
        wait(platform)
    assert "continues without you" not in caplog.text


@contextmanager
def failing(thing: Any, name: str, answers: Iterator[Any]) -> Iterator[None]:
    """Let a call give these answers, one after the other; an exception is raised."""

    def answer(**_names: Any) -> Any:
        given = next(answers)
        if isinstance(given, Exception):
            raise given
        return given

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thing, name, answer)
        yield


@contextmanager
def failing_logs(platform: Platform, error: Exception) -> Iterator[None]:
    """Fail once at the log's first page."""
    get, failures = platform.logs.get_log_events, [error]

    def page(**names: Any) -> Any:
        if failures:
            raise failures.pop()
        return get(**names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform.logs, "get_log_events", page)
        yield


def test_a_job_is_followed_beside_other_work(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    platform.descriptions = [measured("Training"), measured("Training", "Completed", status="Completed")]
    platform.arrives = [("algo-1", "loss=0.5"), ("algo-1", "loss=0.25")]
    loop, held_up = threading.get_ident(), []

    def noting(work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any, **named: Any) -> Any:
            held_up.append(threading.get_ident() == loop)
            return work(*given, **named)

        return noted

    for thing, name in (platform, "describe_training_job"), (platform.logs, "get_log_events"), (follower.time, "sleep"):
        monkeypatch.setattr(thing, name, noting(getattr(thing, name)))

    async def follow() -> list[JobEvent]:
        job = TrainingJob(NAME, platform)
        events = [event async for event in job.events_async()]
        await job.wait_async()
        return events

    events = asyncio.run(follow())
    assert [event.value for event in events if isinstance(event, MetricValue)] == [0.5, 0.25]
    assert held_up and not any(held_up)


def test_waiting_beside_other_work_raises_what_waiting_raises(platform: Platform) -> None:
    platform.descriptions = [described("Failed", status="Failed", FailureReason="AlgorithmError: rank 3")]
    with pytest.raises(TrainingJobFailed, match="rank 3"):
        asyncio.run(TrainingJob(NAME, platform).wait_async())


@pytest.mark.parametrize("where", ["describe", "log", "end"])
def test_a_waiting_that_is_cancelled_while_aws_cannot_be_reached_ends_soon(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(api_retries, "_PATIENCE_SECONDS", 60.0)
    error = EndpointConnectionError(endpoint_url="https://api.sagemaker.us-east-1.amazonaws.com/")
    platform.log("algo-1", "a")
    platform.descriptions = [described("Training")]
    thing, name = (platform.logs, "get_log_events") if where == "log" else (platform, "describe_training_job")
    answers: list[Any] = [COMPLETED] if where == "end" else []

    async def give_up() -> None:
        listening = None if where == "end" else (lambda _: None)
        await asyncio.wait_for(TrainingJob(NAME, platform).wait_async(on_event=listening), timeout=1.0)

    began = time.monotonic()
    with failing(thing, name, chain(answers, repeat(error))), pytest.raises(asyncio.TimeoutError):
        asyncio.run(give_up())
    assert time.monotonic() - began < 30


def test_a_waiting_that_is_cancelled_ends_soon(platform: Platform) -> None:
    platform.descriptions = [described("Training")]

    async def give_up() -> None:
        await asyncio.wait_for(TrainingJob(NAME, platform).wait_async(), timeout=0.2)

    began = time.monotonic()
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(give_up())
    assert time.monotonic() - began < 30
