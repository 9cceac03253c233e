"""A handle on a job that somebody else sent."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.training_job import TrainingJob

pytestmark = pytest.mark.usefixtures("telemetry")


def test_attaching_to_a_job_that_is_not_there_fails(sagemaker_session: Any) -> None:
    with pytest.raises(sagemaker_session.sagemaker_client.exceptions.ClientError):
        TrainingJob.attach("no-such-job", sagemaker_session)


def test_a_job_of_vanilla_pytorch_can_be_attached_to(sagemaker_session: Any, script: str) -> None:
    from sagemaker.pytorch import PyTorch

    PyTorch(
        script,
        role="arn:aws:iam::123456789012:role/SageMaker",
        instance_type="ml.m5.xlarge",
        instance_count=1,
        framework_version="2.8.0",
        py_version="py312",
        sagemaker_session=sagemaker_session,
    ).fit(wait=False, job_name="theirs")
    job = TrainingJob.attach("theirs", sagemaker_session.boto_session)
    job.wait(logs=False)
    assert job.status == "Completed"
