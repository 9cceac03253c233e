"""Who decides how a job ends, when several want to."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from estimators.hosts.failure import Exit
from estimators.local.engine import ApiError
from estimators.local.engine.hosted import states
from estimators.local.engine.hosted.states import Ending, StoppedError
from estimators.local.engine.training.record import TrainingRecord
from estimators.local.engine.training.request import TrainingRequest


def new_job(*, spot: bool = False, max_runtime: int = 100, max_wait: int = 100) -> TrainingRecord:
    wait = {"MaxWaitTimeInSeconds": max_wait} if spot else {}
    request = TrainingRequest.parse(
        {
            "TrainingJobName": "job",
            "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
            "RoleArn": "arn:aws:iam::123456789012:role/training",
            "OutputDataConfig": {"S3OutputPath": "s3://bucket/output/"},
            "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1},
            "StoppingCondition": {"MaxRuntimeInSeconds": max_runtime, **wait},
            "EnableManagedSpotTraining": spot,
        }
    )
    return TrainingRecord(request, "arn")


def training(**parameters: Any) -> TrainingRecord:
    job = new_job(**parameters)
    job.enter("Downloading")
    job.begin_training(hosts=2)
    return job


def finish(job: TrainingRecord) -> tuple[str, str]:
    job.upload()
    job.finish(failure_reason="why" if job.end_training()[0] is Ending.FAILED else None)
    described = job.describe()
    return described["TrainingJobStatus"], described["SecondaryStatus"]


def test_all_hosts_ending_well_completes_the_job() -> None:
    job = training()
    job.host_ended("algo-2", Exit(code=0))
    job.host_ended("algo-1", Exit(code=0))
    assert job.await_ending() is Ending.DONE
    assert finish(job) == ("Completed", "Completed")


def test_the_first_host_to_fail_decides() -> None:
    job = training()
    job.host_ended("algo-2", Exit(code=3))
    assert job.await_ending() is Ending.FAILED
    job.host_ended("algo-1", Exit(code=143))
    assert job.end_training() == (Ending.FAILED, {"algo-2": Exit(code=3), "algo-1": Exit(code=143)})


def test_a_stop_stands_whatever_the_program_then_exits_with() -> None:
    job = training()
    job.stop()
    assert job.describe()["TrainingJobStatus"] == "Stopping"
    job.host_ended("algo-1", Exit(code=1))
    job.host_ended("algo-2", Exit(code=0))
    assert job.await_ending() is Ending.STOP
    assert finish(job) == ("Stopped", "Stopped")


@pytest.mark.parametrize(("code", "end"), [(0, "Completed"), (1, "Failed")])
def test_a_stop_after_the_program_has_ended_changes_nothing(code: int, end: str) -> None:
    job = training()
    job.host_ended("algo-1", Exit(code=code))
    job.host_ended("algo-2", Exit(code=code))
    job.stop()
    assert job.describe()["TrainingJobStatus"] == "InProgress"
    assert finish(job) == (end, end)


def test_stopping_twice_is_as_good_as_once() -> None:
    job = training()
    job.stop()
    job.stop()
    assert [entry["Status"] for entry in job.describe()["SecondaryStatusTransitions"]].count("Stopping") == 1


def test_a_finished_job_refuses_to_be_stopped_interrupted_or_updated() -> None:
    job = training(spot=True)
    job.stop()
    finish(job)
    for refused in (job.stop, job.interrupt, lambda: job.update({})):
        with pytest.raises(ApiError) as error:
            refused()
        assert error.value.code == "ValidationException"
        assert "Stopped" in error.value.message


@pytest.mark.parametrize("repetition", range(20))
def test_stop_and_natural_end_at_one_moment_agree_with_the_description(repetition: int) -> None:
    job = training()
    barrier = threading.Barrier(2)

    def end() -> None:
        barrier.wait()
        job.host_ended("algo-1", Exit(code=0))
        job.host_ended("algo-2", Exit(code=0))

    thread = threading.Thread(target=end)
    thread.start()
    barrier.wait()
    job.stop()
    accepted = job.describe()["TrainingJobStatus"] == "Stopping"
    thread.join()
    assert finish(job)[0] == ("Stopped" if accepted else "Completed")


def test_a_stop_before_the_program_runs_ends_the_way_to_it() -> None:
    job = new_job()
    job.stop()
    with pytest.raises(StoppedError):
        job.enter("Downloading")
    job.finish()
    assert job.describe()["SecondaryStatus"] == "Stopped"
    assert "TrainingStartTime" not in job.describe()


def test_a_change_of_status_ends_the_wait_for_it() -> None:
    job = training()
    known = len(job.describe()["SecondaryStatusTransitions"])
    threading.Timer(0.05, lambda: (job.stop(), None)[1]).start()
    began = time.monotonic()
    job.await_change(known, 60)
    assert time.monotonic() - began < 30
    assert job.describe()["TrainingJobStatus"] == "Stopping"
    job.await_change(known, 60)  # the change has been
    assert time.monotonic() - began < 30


def test_the_wait_for_a_change_has_a_limit_and_ends_with_the_engine() -> None:
    job = training()
    known = len(job.describe()["SecondaryStatusTransitions"])
    began = time.monotonic()
    job.await_change(known, 0.05)
    assert time.monotonic() - began >= 0.05
    threading.Timer(0.05, job.close).start()
    job.await_change(known, 60)
    assert time.monotonic() - began < 30


def test_an_interruption_begins_again() -> None:
    job = training(spot=True)
    job.interrupt()
    job.host_ended("algo-1", Exit(code=1))
    job.host_ended("algo-2", Exit(code=75))
    assert job.end_training()[0] is Ending.INTERRUPT
    job.begin_again()
    job.enter("Downloading")
    job.begin_training(hosts=2)
    job.host_ended("algo-1", Exit(code=0))
    job.host_ended("algo-2", Exit(code=0))
    assert finish(job) == ("Completed", "Completed")
    path = [entry["Status"] for entry in job.describe()["SecondaryStatusTransitions"]]
    life = ["Starting", "Downloading", "Training"]
    assert path == [*life, "Interrupted", *life, "Uploading", "Completed"]


@pytest.mark.parametrize("lost_first", [True, False])
def test_the_loss_of_a_spot_jobs_host_begins_again_whoever_fails_of_it_first(lost_first: bool) -> None:
    job = training(spot=True)
    ends = [("algo-2", Exit(code=137, lost="killed")), ("algo-1", Exit(code=1))]
    for host, end in ends if lost_first else reversed(ends):
        job.host_ended(host, end)
    ending, _ = job.end_training()
    assert ending is Ending.LOST
    assert ending.goes_on
    job.begin_again()
    assert job.describe()["SecondaryStatus"] == "Starting"


def test_the_loss_of_another_jobs_host_fails_it() -> None:
    job = training()
    job.host_ended("algo-2", Exit(code=137, lost="killed"))
    assert job.end_training()[0] is Ending.FAILED


def test_a_loss_does_not_excuse_data_that_could_not_be_sent() -> None:
    job = training(spot=True)
    job.platform_failed("no such object")
    job.host_ended("algo-2", Exit(code=137, lost="killed"))
    assert job.end_training()[0] is Ending.FAILED


def test_a_stop_overrules_a_loss() -> None:
    job = training(spot=True)
    job.host_ended("algo-2", Exit(code=137, lost="killed"))
    job.stop()
    assert job.end_training()[0] is Ending.STOP


def test_only_a_spot_job_in_training_is_interrupted() -> None:
    with pytest.raises(ApiError, match="no EnableManagedSpotTraining"):
        training().interrupt()
    with pytest.raises(ApiError, match="is Starting or about to end"):
        new_job(spot=True).interrupt()
    ending = training(spot=True)
    ending.host_ended("algo-1", Exit(code=1))
    with pytest.raises(ApiError, match="about to end"):
        ending.interrupt()


def test_a_stop_overrules_an_interruption() -> None:
    job = training(spot=True)
    job.interrupt()
    job.stop()
    assert job.end_training()[0] is Ending.STOP
    with pytest.raises(StoppedError):
        job.begin_again()


def test_the_time_limit_counts_the_training_of_all_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 0
    monkeypatch.setattr(states, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))
    job = training(spot=True, max_runtime=100, max_wait=10_000)
    ahead = 60
    job.interrupt()
    job.end_training()
    job.begin_again()
    job.enter("Downloading")
    job.begin_training(hosts=2)
    ahead = 90
    assert not job.must_end()
    ahead = 101
    assert job.await_ending() is Ending.STOP
    assert finish(job) == ("Stopped", "MaxRuntimeExceeded")


def test_the_wait_limit_counts_from_the_jobs_creation() -> None:
    job = new_job(spot=True, max_runtime=1, max_wait=1)
    time.sleep(1)
    assert job.must_end()
    with pytest.raises(StoppedError):
        job.enter("Downloading")
    job.finish()
    assert job.describe()["SecondaryStatus"] == "MaxWaitTimeExceeded"


def test_training_time_is_summed_and_at_least_a_second() -> None:
    job = training()
    job.stop()
    finish(job)
    assert job.describe()["TrainingTimeInSeconds"] == job.describe()["BillableTimeInSeconds"] == 1


def test_closing_ends_a_wait_for_exits() -> None:
    job = training()
    job.stop()
    threading.Timer(0.05, job.close).start()
    began = time.monotonic()
    assert not job.await_exits(60)
    assert time.monotonic() - began < 30


def test_an_update_changes_what_it_names_and_no_more() -> None:
    job = training()
    job.update({"ResourceConfig": {"KeepAlivePeriodInSeconds": 60}})
    job.update({"ProfilerConfig": {"DisableProfiler": True}})
    described = job.describe()
    assert described["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 60
    assert described["ResourceConfig"]["InstanceCount"] == 2
    assert described["ProfilerConfig"] == {"DisableProfiler": True}


def test_a_description_belongs_to_who_asked_for_it() -> None:
    job = training()
    job.describe()["ResourceConfig"]["InstanceCount"] = 99
    assert job.describe()["ResourceConfig"]["InstanceCount"] == 2
