"""However a job ends, its status and its reason are ones that a person can act on, and fit() raises them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from estimators import Estimator
from estimators.errors import EstimatorError, TrainingJobFailed, TrainingJobStopped
from estimators.local import LocalSageMaker
from estimators.training_job import TrainingJob

Build = Callable[..., Estimator]


def wait_for_line(job: TrainingJob, text: str) -> None:
    for _host, line in job.logs():
        if text in line:
            return
    raise AssertionError(f"{job.name} ended without a line that has {text!r}")


def secondary_statuses(job: TrainingJob) -> list[str]:
    return [transition["Status"] for transition in job.describe()["SecondaryStatusTransitions"]]


@pytest.mark.slow
def test_a_finished_job_returns_its_model(estimator: Build) -> None:
    finalizes = {"FORK_PYTHON_FINALIZES": "1"}  # an abort at Python's own end would be the rank's exit code
    job = estimator("count.py", hyperparameters={"target": 3}, environment=finalizes).fit()
    assert job.status == "Completed"
    assert job.model_data.endswith("model.tar.gz")
    assert secondary_statuses(job) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]


@pytest.mark.slow
def test_a_stop_is_stopped_and_raised(estimator: Build) -> None:
    job = estimator("count.py").fit(wait=False)
    wait_for_line(job, "count=5")
    job.stop()
    with pytest.raises(TrainingJobStopped, match=job.name):
        job.wait()
    assert (job.status, job.secondary_status) == ("Stopped", "Stopped")


@pytest.mark.slow
def test_fit_raises_when_somebody_else_stops_the_job(estimator: Build, platform: LocalSageMaker) -> None:
    name = f"stopped-by-another-{time.time_ns()}"

    def stop_when_training() -> None:
        job = TrainingJob(name, platform.boto_session)
        while True:
            try:
                wait_for_line(job, "count=5")
                return job.stop()
            except platform.boto_session.client("sagemaker").exceptions.ClientError:
                time.sleep(0.1)  # it was not sent yet

    stopper = threading.Thread(target=stop_when_training)
    stopper.start()
    with pytest.raises(TrainingJobStopped):
        estimator("count.py").fit(job_name=name)
    stopper.join()


@pytest.mark.slow
def test_an_interruption_resumes_from_the_checkpoint(estimator: Build, platform: LocalSageMaker) -> None:
    checkpoints = f"s3://{platform.default_bucket}/counting-{time.time_ns()}"
    job = estimator(
        "count.py",
        hyperparameters={"target": 120, "wait_at": 20},
        use_spot_instances=True,
        max_wait=240,
        checkpoint_s3_uri=checkpoints,
    ).fit(wait=False)
    wait_for_line(job, "count=20")
    platform.interrupt(job.name)
    job.wait()
    lines = [line for _host, line in job.logs()]
    stopped = next(int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("stopped at"))
    assert f"counting from {stopped} to 120" in lines
    assert [f"count={number}" for number in range(1, 121)] == [x for x in lines if x.startswith("count=")]
    assert job.status == "Completed"
    statuses = secondary_statuses(job)
    assert statuses[statuses.index("Interrupted") :] == [
        "Interrupted",
        "Starting",
        "Downloading",
        "Training",
        "Uploading",
        "Completed",
    ]


@pytest.mark.slow
def test_the_failing_rank_is_named_with_its_own_traceback(estimator: Build) -> None:
    with pytest.raises(TrainingJobFailed) as failure:
        estimator(
            "failing_rank.py",
            instance_count=2,
            distribution="torchrun",
            hyperparameters={"label": 41, "sagemaker_mpi_num_of_processes_per_host": 2},
        ).fit()
    reason = failure.value.reason
    assert "ValueError: label 41 is not one of the 10 classes" in reason
    assert "rank 3" in reason
    assert "algo-2" in reason
    assert "failing_rank.py" in reason
    assert failure.value.status == "Failed"


def test_a_missing_entry_point_is_found_before_anything_is_uploaded(estimator: Build) -> None:
    with pytest.raises(EstimatorError, match=r"cuont\.py"):
        estimator("cuont.py").fit()


@pytest.mark.slow
def test_a_missing_entry_point_in_the_bundle_fails_with_what_is_there(
    estimator: Build, platform: LocalSageMaker
) -> None:
    finished = estimator("count.py", hyperparameters={"target": 1}).fit()
    description = finished.describe()
    request = {
        key: description[key]
        for key in (
            "AlgorithmSpecification",
            "RoleArn",
            "OutputDataConfig",
            "ResourceConfig",
            "StoppingCondition",
        )
    }
    name = f"no-entry-point-{time.time_ns()}"
    platform.boto_session.client("sagemaker").create_training_job(
        TrainingJobName=name,
        HyperParameters=description["HyperParameters"] | {"sagemaker_program": '"cuont.py"'},
        **request,
    )
    with pytest.raises(TrainingJobFailed) as failure:
        TrainingJob.attach(name, platform.session).wait()
    assert "cuont.py" in failure.value.reason
    assert "count.py" in failure.value.reason


@pytest.mark.slow
def test_a_missing_channel_is_told_before_the_job_and_by_it(
    estimator: Build, platform: LocalSageMaker, tmp_path: Path
) -> None:
    uri = f"s3://{platform.default_bucket}/channel/{time.time_ns()}"
    bucket, key = uri.removeprefix("s3://").split("/", 1)
    platform.boto_session.client("s3").put_object(Bucket=bucket, Key=f"{key}/x.txt", Body=b"x")
    with pytest.raises(EstimatorError, match=r"the job has trainning\. Give fit\(\) a channel named"):
        estimator("needs_channel.py").fit({"trainning": uri})
    with pytest.raises(EstimatorError, match=r"the job has none\. Give fit\(\) {'training'"):
        estimator("needs_channel.py").fit()
    script = (Path(__file__).parent / "scripts" / "needs_channel.py").read_text()
    (tmp_path / "train.py").write_text(script.replace('"training"', '"training".lower()'))
    with pytest.raises(TrainingJobFailed) as failure:
        estimator("train.py", source_dir=str(tmp_path)).fit()
    assert "There is no channel 'training'" in failure.value.reason


@pytest.mark.slow
def test_a_bucket_that_does_not_exist_is_refused_before_a_job(estimator: Build) -> None:
    with pytest.raises(EstimatorError, match=r"there is no bucket no-such-bucket-anywhere\. Correct the URI\."):
        estimator("count.py").fit({"training": "s3://no-such-bucket-anywhere/digits"})


@pytest.mark.slow
def test_a_full_run_time_is_stopped_and_says_so(estimator: Build) -> None:
    with pytest.raises(TrainingJobStopped) as failure:
        estimator("count.py", max_run=3).fit()
    assert failure.value.secondary_status == "MaxRuntimeExceeded"
    assert "max_run" in str(failure.value) or "MaxRuntime" in str(failure.value)
