"""A job that the platform has failed begins again, as often as its RetryStrategy says; no other does."""

from __future__ import annotations

import json
import threading
import time
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from estimators.hosts.failure import Exit
from estimators.local.engine.hosted.logs import TRAINING_JOBS
from estimators.local.engine.hosted.record import KILLED
from estimators.local.engine.hosted.states import Ending, StoppedError
from estimators.local.engine.records import write_time
from estimators.local.engine.training import runner
from estimators.local.engine.training.record import TrainingRecord
from estimators.local.engine.training.request import TrainingRequest
from estimators.local.executors import ExecutorError, HostProcess, HostSpec
from estimators.local.executors.process import ProcessCluster
from tests.estimators.local.engine.training.test_request import REQUEST
from tests.estimators.local.engine.whole_jobs import TWO_HOSTS, Lines, await_line, kill_from_outside

LOST = Exit(code=137, lost="killed")
ONCE = {"RetryStrategy": {"MaximumRetryAttempts": 1}}
LIFE = ["Starting", "Downloading", "Training"]
WAITS_ONCE = """
    import pathlib, time
    saved = pathlib.Path("/opt/ml/checkpoints/step")
    if saved.exists():
        print("from", saved.read_text())
        raise SystemExit
    saved.write_text("7")
    print("up", flush=True)
    time.sleep(60)
"""


def training(**members: Any) -> TrainingRecord:
    job = TrainingRecord(TrainingRequest.parse({**REQUEST, **members}), "arn")
    job.enter("Downloading")
    job.begin_training(hosts=1)
    return job


def path_of(job: TrainingRecord) -> list[str]:
    return [transition["Status"] for transition in job.describe()["SecondaryStatusTransitions"]]


def test_a_lost_host_is_retried_as_often_as_is_asked() -> None:
    job = training(**ONCE)
    job.host_ended("algo-1", LOST)
    assert job.end_training()[0] is Ending.LOST
    job.begin_again()
    assert (path_of(job), job.retries) == ([*LIFE, "Starting"], 1)
    job.enter("Downloading")
    job.begin_training(hosts=1)
    job.host_ended("algo-1", LOST)
    assert job.end_training()[0] is Ending.FAILED


@pytest.mark.parametrize(
    ("reason", "for_good", "ending"),
    [
        ("InternalServerError: a defect", False, Ending.LOST),
        ("InternalServerError: the storage is gone", True, Ending.FAILED),
        ("ClientError: no gzip file", False, Ending.FAILED),
    ],
)
def test_only_what_may_be_better_next_time_is_retried(reason: str, for_good: bool, ending: Ending) -> None:
    job = training(**ONCE)
    job.platform_failed(reason, for_good=for_good)
    assert job.end_training()[0] is ending
    assert job.platform_failure == reason


def test_a_stop_overrules_a_retry() -> None:
    job = training(**ONCE)
    job.host_ended("algo-1", LOST)
    job.stop()
    with pytest.raises(StoppedError):
        job.begin_again()
    assert not job.retries_after("InternalServerError: too late")


def test_hosts_that_were_ended_for_the_platforms_failure_do_not_hide_it() -> None:
    job = training(**ONCE)
    job.host_ended("algo-1", Exit(code=137))
    assert job.retries_after("InternalServerError: algo-2 could not be started")
    job.begin_again()
    assert job.retries == 1


def test_what_was_decided_while_it_trained_stands_after_that() -> None:
    job = training(**ONCE)
    job.host_ended("algo-1", LOST)
    job.end_training()
    assert not job.retries_after("InternalServerError: the checkpoints could not be sent")


def test_a_killed_platform_is_the_platforms_failure() -> None:
    kept = json.loads(json.dumps(training(**ONCE).to_json(), default=write_time))
    job = TrainingRecord.from_json(kept)
    assert job.outlive(datetime.now(timezone.utc))
    assert (path_of(job), job.retries) == ([*LIFE, "Starting"], 1)
    job = TrainingRecord.from_json(json.loads(json.dumps(job.to_json(), default=write_time)))
    assert not job.outlive(datetime.now(timezone.utc))
    assert job.describe()["FailureReason"] == KILLED


@pytest.mark.parametrize(("kind", "stopped"), [("ml.g5.xlarge", True), ("ml.m5.large", False)])
def test_a_job_with_gpus_waits_for_its_hosts_no_longer_than_is_asked(
    kind: str, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = {
        **REQUEST,
        "ResourceConfig": {"InstanceType": kind, "InstanceCount": 1, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxPendingTimeInSeconds": 1800},
    }
    waiting, running = (TrainingRecord(TrainingRequest.parse(request), "arn") for _ in range(2))
    running.enter("Downloading")
    later = time.monotonic() + 1801
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert waiting.must_end() is stopped
    assert not running.must_end()


def test_a_job_whose_host_is_lost_goes_on_from_what_was_saved(client: Any, lines: Lines) -> None:
    name = client.submit(WAITS_ONCE, **ONCE, CheckpointConfig={"S3Uri": f"s3://{client.bucket}/c"})
    await_line(lines, name, "up")
    kill_from_outside(name)
    job = client.wait(name)
    assert client.path_of(job) == [*LIFE, *LIFE, "Uploading", "Completed"]
    assert lines(name)[-2:] == [
        "[platform] Retry 1 of 1, as RetryStrategy asks, after InternalServerError: algo-1 was lost: its first process "
        "was killed from outside.",
        "from 7",
    ]


def test_each_attempt_has_a_stream_of_its_own_also_within_a_second(
    client: Any, monkeypatch: pytest.MonkeyPatch, logs: Any
) -> None:
    monkeypatch.setattr(runner, "lay_out", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("estimators.local.engine.hosted.runner.time", SimpleNamespace(time=lambda: 1_700_000_000.5))
    name = client.submit("", **ONCE, RemoteDebugConfig={"EnableRemoteDebug": True})
    assert client.wait(name)["TrainingJobStatus"] == "Failed"
    found = logs.describe_log_streams(logGroupName=TRAINING_JOBS, logStreamNamePrefix=f"{name}/")["logStreams"]
    streams = [stream["logStreamName"] for stream in found]
    assert streams == [f"{name}/algo-1-1700000000", f"{name}/algo-1-1700000001"]
    last = logs.get_log_events(logGroupName=TRAINING_JOBS, logStreamName=streams[1], startFromHead=True)["events"]
    assert [event["message"].partition(",")[0] for event in last] == [
        "[platform] Recorded alone",
        "[platform] Retry 1 of 1",
    ]


def test_a_job_that_meets_a_defect_before_it_trains_is_retried_and_then_fails(
    client: Any, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    defects = iter([ZeroDivisionError("once"), None, ZeroDivisionError("once"), ZeroDivisionError("twice")])
    lay_out = runner.lay_out

    def broken(*arguments: Any) -> None:
        if defect := next(defects):
            raise defect
        lay_out(*arguments)

    monkeypatch.setattr("estimators.local.engine.training.runner.lay_out", broken)
    job = client.run("print('trained')", **ONCE)
    assert client.path_of(job) == ["Starting", "Downloading", *LIFE, "Uploading", "Completed"]
    assert lines(job["TrainingJobName"])[-1] == "trained"
    job = client.run(**ONCE)
    assert client.path_of(job) == [*["Starting", "Downloading"] * 2, "Failed"]
    assert job["FailureReason"] == "InternalServerError: ZeroDivisionError: twice"


def test_a_host_that_can_not_be_started_is_retried_though_the_others_run(
    client: Any, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    first_is_up, problems = threading.Event(), iter(["its container could not be made"])
    start = ProcessCluster.start

    def broken(cluster: ProcessCluster, spec: HostSpec) -> HostProcess:
        if spec.name == "algo-2":
            assert first_is_up.wait(30)
            if problem := next(problems, None):
                raise ExecutorError(f"algo-2: {problem}")
            return start(cluster, spec)
        process = start(cluster, spec)
        first_is_up.set()
        return process

    monkeypatch.setattr(ProcessCluster, "start", broken)
    job = client.run("print('trained')", **ONCE, ResourceConfig=TWO_HOSTS)
    assert client.path_of(job) == [*LIFE, *LIFE, "Uploading", "Completed"], job
    assert lines(job["TrainingJobName"], "algo-2") == ["trained"]


def test_the_scripts_own_failure_is_not_retried(client: Any) -> None:
    job = client.run("exit(3)", **ONCE)
    assert client.path_of(job) == [*LIFE, "Uploading", "Failed"]
