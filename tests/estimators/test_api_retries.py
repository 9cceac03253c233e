"""A job is sent again while AWS throttles it, and is one job all the same."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from estimators import api_retries
from estimators.errors import EstimatorError

REQUEST = {
    "TrainingJobName": "digits",
    "RoleArn": "arn:aws:iam::123456789012:role/training",
    "HyperParameters": {"epochs": "3"},
    "OutputDataConfig": {"S3OutputPath": "s3://jobs"},
}


class SageMaker:
    """AWS by script: what each attempt to create a job meets; at the end it is created, if its name is free."""

    def __init__(self, *errors: Exception, makes: bool = False) -> None:
        self.errors = list(errors)
        self.makes = makes
        self.jobs: dict[str, dict[str, Any]] = {}
        self.attempts = 0

    def create_training_job(self, **request: Any) -> None:
        self.attempts += 1
        if request["TrainingJobName"] in self.jobs:
            raise refused("ResourceInUse")
        if not self.errors or self.makes:
            self.take(request)
        if self.errors:
            raise self.errors.pop(0)

    def describe_training_job(self, TrainingJobName: str) -> dict[str, Any]:  # noqa: N803
        return self.jobs[TrainingJobName]

    def take(self, request: dict[str, Any], created: datetime | None = None) -> None:
        output = {**request["OutputDataConfig"], "KmsKeyId": "", "CompressionType": "GZIP"}
        created = created or datetime.now(timezone.utc)
        self.jobs[request["TrainingJobName"]] = {**request, "OutputDataConfig": output, "CreationTime": created}


def refused(code: str, status: int = 400, retries: int = 0) -> ClientError:
    metadata = {"HTTPStatusCode": status, "RetryAttempts": retries}
    answer: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": metadata}
    return ClientError(answer, "CreateTrainingJob")


UNANSWERED = (refused("InternalFailure", 500), ReadTimeoutError(endpoint_url="https://api.sagemaker.amazonaws.com"))


def test_a_throttled_job_is_sent_again() -> None:
    sagemaker = SageMaker(refused("ThrottlingException"), refused("ThrottlingException"))
    api_retries.create_training_job(sagemaker, REQUEST)
    assert sagemaker.attempts == 3
    assert list(sagemaker.jobs) == ["digits"]


@pytest.mark.parametrize("error", UNANSWERED, ids=["server error", "timeout"])
def test_a_job_that_an_unanswered_attempt_made_is_taken(error: Exception) -> None:
    sagemaker = SageMaker(error, makes=True)
    api_retries.create_training_job(sagemaker, REQUEST)
    assert sagemaker.attempts == 2


def test_a_job_that_an_attempt_of_boto3_s_own_made_is_taken() -> None:
    sagemaker = SageMaker(refused("ResourceInUse", retries=1))
    sagemaker.take({**REQUEST, "TrainingJobName": "another"})
    sagemaker.jobs["digits"] = sagemaker.jobs.pop("another")
    sagemaker.create_training_job = lambda **_: (_ for _ in ()).throw(sagemaker.errors[0])  # type: ignore[method-assign]
    api_retries.create_training_job(sagemaker, REQUEST)


@pytest.mark.parametrize(
    ("error", "other", "age"),
    [
        (refused("ThrottlingException"), {}, 0),
        (UNANSWERED[0], {"HyperParameters": {"epochs": "4"}}, 0),
        (UNANSWERED[0], {}, 3600),
    ],
    ids=["no attempt reached it", "another request", "an older job"],
)
def test_another_job_of_the_same_name_is_not_taken(error: Exception, other: dict[str, Any], age: int) -> None:
    sagemaker = SageMaker(error)
    failing = sagemaker.create_training_job

    def create(**request: Any) -> None:
        try:
            failing(**request)
        finally:
            sagemaker.take({**REQUEST, **other}, datetime.now(timezone.utc) - timedelta(seconds=age))

    sagemaker.create_training_job = create  # type: ignore[method-assign]
    with pytest.raises(EstimatorError, match="ResourceInUse"):
        api_retries.create_training_job(sagemaker, REQUEST)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (refused("ValidationException"), r"^digits was not started: ValidationException \(no\); correct what it names"),
        (refused("ResourceInUse"), r"^digits was not started: ResourceInUse \(no\); no two jobs .* another job_name"),
        (
            refused("ResourceLimitExceeded"),
            r"^digits was not started: .*; use fewer instances or another instance_type",
        ),
        (refused("AccessDeniedException"), r"^digits was not started: .*smddp plan --iam"),
        (refused("ExpiredTokenException"), r"^digits was not started: .*the credentials expired: renew them"),
        (ParamValidationError(report="Invalid type"), r"(?s)^digits was not started: .*Invalid type\nCorrect what"),
        (
            EndpointConnectionError(endpoint_url="https://api.sagemaker.nowhere.amazonaws.com/"),
            r"AWS did not answer the request to start digits: .*nowhere.*TrainingJob.attach\('digits'\)",
        ),
    ],
)
def test_a_refusal_is_raised_at_once_and_says_what_to_do(error: Exception, said: str) -> None:
    sagemaker = SageMaker(error)
    with pytest.raises(EstimatorError, match=said) as raised:
        api_retries.create_training_job(sagemaker, REQUEST)
    assert sagemaker.attempts == 1
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", UNANSWERED, ids=["server error", "timeout"])
def test_a_job_that_may_have_started_is_not_told_as_not_started(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_retries, "_PATIENCE_SECONDS", 0)
    with pytest.raises(EstimatorError, match="An attempt may have started it") as raised:
        api_retries.create_training_job(SageMaker(error), REQUEST)
    assert "was not started" not in str(raised.value)


def test_missing_credentials_are_explained() -> None:
    with pytest.raises(EstimatorError, match=r"Unable to locate credentials\. Sign in"):
        api_retries.create_training_job(SageMaker(NoCredentialsError()), REQUEST)
