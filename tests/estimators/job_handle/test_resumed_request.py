"""The request of a job that goes on from another one."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from estimators.errors import EstimatorError
from estimators.job_handle.resumed_request import Changes, new_name, resumed_request
from estimators.job_handle.service import SageMakerService

NOTHING: dict[str, Any] = dict.fromkeys(Changes.__dataclass_fields__)


def described(**others: Any) -> dict[str, Any]:
    return {
        "TrainingJobName": "digits-2026-01-01-12-00-00-000",
        "TrainingJobArn": "arn:aws:sagemaker:us-east-1:123456789012:training-job/digits",
        "TrainingJobStatus": "Stopped",
        "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
        "RoleArn": "arn:aws:iam::123456789012:role/SageMaker",
        "InputDataConfig": [],
        "OutputDataConfig": {"S3OutputPath": "s3://jobs/", "KmsKeyId": "", "CompressionType": "GZIP"},
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200},
        "EnableManagedSpotTraining": True,
        "CheckpointConfig": {"S3Uri": "s3://jobs/checkpoints", "LocalPath": "/opt/ml/checkpoints"},
        "HyperParameters": {
            "epochs": "5",
            "note": '"a"',
            "sagemaker_job_name": '"digits-2026-01-01-12-00-00-000"',
            "sagemaker_instance_type": '"ml.g5.xlarge"',
        },
        "CreationTime": datetime(2026, 1, 1, tzinfo=timezone.utc),
        "BillableTimeInSeconds": 100,
        **others,
    }


def service_of_aws() -> tuple[Any, SageMakerService]:
    session = boto3.Session(region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
    client = session.client("sagemaker")
    return client, SageMakerService("digits", SimpleNamespace(boto_session=session, sagemaker_client=client))


def resumed(description: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return resumed_request(description or described(), Changes(**(NOTHING | changes)), "again")


def test_it_has_what_the_description_has_of_a_request_and_aws_would_take_it() -> None:
    client, service = service_of_aws()
    before = described()
    with Stubber(client) as stub:
        stub.add_response("create_training_job", {"TrainingJobArn": before["TrainingJobArn"]})
        service.send(resumed(before))  # botocore checks its members
        stub.assert_no_pending_responses()
    request = resumed(before, instance_count=2)
    assert request["TrainingJobName"] == "again"
    assert request["CheckpointConfig"] == before["CheckpointConfig"]
    assert request["OutputDataConfig"] == {"S3OutputPath": "s3://jobs/", "CompressionType": "GZIP"}
    assert not request.keys() & {"TrainingJobStatus", "InputDataConfig", "CreationTime", "BillableTimeInSeconds"}
    assert before == described(), "the description was changed"


def test_changes_are_written_as_the_job_writes_its_values() -> None:
    request = resumed(
        hyperparameters={"epochs": 9, "note": "b", "lr": None},
        environment={"A": "1"},
        instance_type="ml.g5.2xlarge",
        instance_count=2,
        max_run=100,
        max_wait=200,
    )
    assert request["HyperParameters"] == {
        "epochs": "9",
        "note": '"b"',
        "sagemaker_job_name": '"again"',
        "sagemaker_instance_type": '"ml.g5.2xlarge"',
    }
    assert request["Environment"] == {"A": "1"}
    resources = request["ResourceConfig"]
    assert (resources["InstanceType"], resources["InstanceCount"], resources["VolumeSizeInGB"]) == (
        "ml.g5.2xlarge",
        2,
        30,
    )
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 100, "MaxWaitTimeInSeconds": 200}


def test_text_stays_bare_where_the_job_has_it_bare() -> None:
    bare = described(HyperParameters={"epochs": "5", "note": "a"})
    values = resumed(bare, hyperparameters={"note": "b", "epochs": None, "flag": True})["HyperParameters"]
    assert values == {"note": "b", "flag": "true"}


def test_a_job_that_is_not_spot_any_more_has_no_longest_wait() -> None:
    request = resumed(use_spot_instances=False)
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600}
    assert request["EnableManagedSpotTraining"] is False


@pytest.mark.parametrize(
    ("description", "changes", "said"),
    [
        (described(), {"use_spot_instances": False, "max_wait": 3}, "max_wait is for spot jobs alone"),
        (described(ResourceConfig={"InstanceGroups": []}), {"instance_count": 3}, "has instance groups"),
        (described(), {"hyperparameters": {"f": object}}, r"hyperparameters\['f'\] is .* no JSON"),
        (described(), {"hyperparameters": "epochs=3"}, "Give a dict"),
        (described(), {"environment": ["A"]}, r"environment is \['A'\]. Give a dict"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(description: Any, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(EstimatorError, match=said):
        resumed(description, **changes)


def test_a_request_that_is_refused_is_told_with_the_jobs_name() -> None:
    client, service = service_of_aws()
    with pytest.raises(EstimatorError, match=r"(?s)again was not started: .*InstanceCount"):
        service.send(resumed(instance_count="two"))
    with Stubber(client) as stub, pytest.raises(EstimatorError, match=r"again was not started: .*no such quota"):
        stub.add_client_error("create_training_job", "ResourceLimitExceeded", "no such quota")
        service.send(resumed())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("digits-2026-01-01-12-00-00-000", "digits-2026-11-23-17-00-00-123"),
        ("run-7", "run-7-2026-11-23-17-00-00-123"),
        ("x" * 63, "x" * 39 + "-2026-11-23-17-00-00-123"),
    ],
)
def test_a_new_name_has_another_time(before: str, after: str) -> None:
    now = datetime(2026, 11, 23, 17, 0, 0, 123456, tzinfo=timezone.utc)
    assert new_name(before, now) == after
    assert len(after) <= 63
