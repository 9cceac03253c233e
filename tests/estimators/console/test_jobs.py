"""How long a job took, in the list."""

from datetime import datetime, timedelta, timezone
from typing import Any
from unittest.mock import Mock

import pytest

from estimators.console.jobs import JobFilter, job_page

CREATED = datetime.now(timezone.utc) - timedelta(hours=1)


@pytest.mark.parametrize("status", ["Failed", "Stopped"])
def test_a_job_that_ended_before_it_trained_takes_no_longer(status: str) -> None:
    times = {"CreationTime": CREATED, "LastModifiedTime": CREATED + timedelta(seconds=6)}
    assert _seconds({"TrainingJobStatus": status, **times}) == 6


@pytest.mark.parametrize("status", ["InProgress", "Stopping"])
def test_a_job_that_runs_takes_until_now(status: str) -> None:
    times = {"CreationTime": CREATED, "LastModifiedTime": CREATED + timedelta(seconds=6)}
    assert _seconds({"TrainingJobStatus": status, **times}) >= 3600


def _seconds(job: dict[str, Any]) -> float:
    sagemaker = Mock()
    sagemaker.list_training_jobs.return_value = {"TrainingJobSummaries": [job]}
    (shown,) = job_page(sagemaker, JobFilter(), "").jobs
    seconds: float = shown["Seconds"]
    return seconds
