"""What the handle of a real job gives: its metrics, checkpoints and files, and a job that goes on from it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from estimators import Estimator
from estimators.errors import EstimatorError, TrainingJobStopped
from estimators.job_handle.events import MetricValue, StatusChange
from estimators.local import LocalSageMaker
from estimators.training_job import TrainingJob

Build = Callable[..., Estimator]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stopped_job_shows_what_it_did_and_another_one_goes_on_from_it(
    estimator: Build, platform: LocalSageMaker, tmp_path: Path
) -> None:
    place = f"s3://{platform.default_bucket}/leaves-{time.time_ns()}"
    first = estimator(
        "leaves.py", checkpoint_s3_uri=place, hyperparameters={"epochs": 3, "note": "from the first", "wait_at": 30}
    ).fit(wait=False)
    with pytest.raises(EstimatorError, match=r"is InProgress, and two jobs can't write to .*stop\(\) and wait\(\)"):
        first.resume()
    for event in first.events():
        if isinstance(event, MetricValue) and event.metric == "loss" and event.step == 30:
            first.stop()
            break
    with pytest.raises(TrainingJobStopped):
        first.wait(logs=False)

    frame = first.metrics()
    losses = frame[frame["metric"] == "loss"]
    assert losses["step"].tolist()[:6] == [5, 10, 15, 20, 25, 30]
    assert losses["epoch"].tolist()[:6] == [1, 1, 1, 1, 2, 2]  # as in the log
    assert first.final_metrics()["loss"] == losses["value"].iloc[-1]
    assert set(frame["metric"]) == {"loss", "lr", "samples_per_second", "goodput"}
    assert len(first.plot("loss").axes) == 1
    checkpoints = first.checkpoints()
    last = checkpoints[-1].step
    assert [info.status for info in checkpoints] == ["valid"] * len(checkpoints)
    assert 30 <= last < 60

    again = TrainingJob.attach(first.name, platform.session).resume(
        hyperparameters={"epochs": 4, "note": "from the second"}, instance_type="ml.g4dn.xlarge"
    )
    told = []
    again.wait(logs=False, on_event=told.append)
    description = again.describe()
    assert again.name != first.name
    assert description["ResourceConfig"]["InstanceType"] == "ml.g4dn.xlarge"
    assert description["HyperParameters"]["epochs"] == "4"
    assert json.loads(description["HyperParameters"]["sagemaker_job_name"]) == again.name
    assert any(f"resumed at step {last}," in line for _host, line in again.logs())
    assert [event.status for event in told if isinstance(event, StatusChange)][-1] == "Completed"
    assert max(event.step for event in told if isinstance(event, MetricValue)) == 80
    assert again.checkpoints(deep=True)[-1].step == 80

    files = again.download(tmp_path / "files")
    assert files.output is not None
    assert (files.output / "note.txt").read_text() == "from the second"
    assert files.model is not None
    assert list(files.model.iterdir())
    with pytest.raises(EstimatorError, match="model is not empty"):
        again.download(tmp_path / "files")


@pytest.mark.slow
def test_a_job_that_left_and_keeps_nothing_says_so(estimator: Build, tmp_path: Path) -> None:
    job = estimator("failing_rank.py").fit(wait=False)
    with pytest.raises(EstimatorError, match="has left neither a model nor output: it is "):
        job.download(tmp_path)
    for call in (job.checkpoints, job.resume):
        with pytest.raises(EstimatorError, match="keeps no checkpoints: it was sent without checkpoint_s3_uri"):
            call()
    job.stop()
