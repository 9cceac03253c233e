"""A local job's handle, after its end: what nothing keeps is refused with a reason, and no deeper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators import Estimator
from estimators.errors import EstimatorError
from estimators.job_handle.service import EndedLocalJob
from estimators.training_job import TrainingJob


@pytest.fixture
def job(tmp_path: Path) -> TrainingJob:
    (tmp_path / "step-000000000010").mkdir()
    description = {
        "TrainingJobStatus": "Completed",
        "CheckpointConfig": {"S3Uri": f"file://{tmp_path}"},
        "OutputDataConfig": {"S3OutputPath": f"file://{tmp_path}"},
    }
    return TrainingJob("mine", EndedLocalJob("mine", description))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda job: job.metrics(), "mine has no log"),
        (lambda job: job.plot(), "mine has no log"),
        (lambda job: list(job.events()), "mine has no log"),
        (lambda job: list(job.lines()), "mine has no log"),
        (lambda job: job.download("."), "is not in S3, so it is not downloaded. Use it where it is"),
        (lambda job: job.resume(), r"can't be sent again; the next fit\(\) resumes"),
    ],
)
def test_what_nothing_keeps_is_refused(job: TrainingJob, call: Callable[[TrainingJob], Any], said: str) -> None:
    with pytest.raises(EstimatorError, match=said):
        call(job)


def test_its_wait_is_over(job: TrainingJob) -> None:
    job.wait()
    job.stop()
    assert job.status == "Completed"


def test_its_checkpoints_are_those_of_its_directory(job: TrainingJob) -> None:
    assert [(info.step, info.status) for info in job.checkpoints()] == [(10, "incomplete")]


@pytest.mark.parametrize(
    ("instance_type", "wait", "on_event", "said"),
    [
        ("local", True, "cat", "on_event gets nothing for instance_type='local'"),
        ("ml.m5.xlarge", False, "cat", r"Give it to job.wait\(\), or pass wait=True"),
        ("ml.m5.xlarge", True, 3, "on_event is 3"),
    ],
)
def test_who_would_be_told_nothing_is_refused_before_anything_is_sent(
    instance_type: str, wait: bool, on_event: Any, said: str
) -> None:
    with pytest.raises(EstimatorError, match=said):
        Estimator("train.py", instance_type=instance_type).fit(wait=wait, on_event=on_event)
