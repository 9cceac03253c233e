"""The operations, as a client meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.validate import ParamValidator

from estimators.local.engine import ApiError
from estimators.local.engine.hosted.runner import HostedRunner
from estimators.local.engine.validation import PUT_METRICS
from estimators.service_model import service_model


def fits_the_model(operation: str, answer: dict[str, Any]) -> bool:
    shape = service_model().operation_model(operation).output_shape
    return shape is None or not ParamValidator().validate(answer, shape).has_errors()


def refusal(client: Any, operation: str, **request: Any) -> tuple[str, str]:
    with pytest.raises(ApiError) as error:
        client.call(operation, **request)
    return error.value.code, error.value.message


def test_a_job_is_created_with_its_arn(client: Any) -> None:
    request = client.request()
    answer = client.call("CreateTrainingJob", **request)
    name = request["TrainingJobName"]
    assert answer == {"TrainingJobArn": f"arn:aws:sagemaker:us-east-1:123456789012:training-job/{name}"}


def test_the_form_of_a_request_is_checked_once(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    validate = ParamValidator.validate

    def counted(validator: ParamValidator, params: Any, shape: Any) -> Any:
        checked.extend([shape.name] if shape.name == "CreateTrainingJobRequest" else [])
        return validate(validator, params, shape)

    monkeypatch.setattr(ParamValidator, "validate", counted)
    client.wait(client.create(client.request()))
    assert checked == ["CreateTrainingJobRequest"]


def test_a_name_is_taken_once(client: Any) -> None:
    request = client.request()
    client.wait(client.create(request))
    code, message = refusal(client, "CreateTrainingJob", **request)
    assert code == "ResourceInUse"
    assert message.startswith("Training job names must be unique within an AWS account and region")


def test_a_refused_request_leaves_no_job(client: Any) -> None:
    request = client.request(EnableManagedSpotTraining=True)
    assert refusal(client, "CreateTrainingJob", **request)[0] == "ValidationException"
    assert refusal(client, "DescribeTrainingJob", TrainingJobName=request["TrainingJobName"])[1].startswith(
        "Requested resource not found"
    )


@pytest.mark.parametrize("operation", ["DescribeTrainingJob", "StopTrainingJob", "DeleteTrainingJob"])
def test_a_job_that_is_not_there_is_named(client: Any, operation: str) -> None:
    code, message = refusal(client, operation, TrainingJobName="nobody")
    assert code == "ValidationException"
    assert message == "Requested resource not found: there is no training job nobody."


def test_unknown_operations_and_other_regions_are_refused(client: Any) -> None:
    assert refusal(client, "CreateModel")[0] == "UnknownOperationException"
    with pytest.raises(ApiError, match="This platform is in the region us-east-1; the request is for eu-west-1"):
        client.engine.call("ListTrainingJobs", {}, region="eu-west-1")


def test_operations_are_named(client: Any) -> None:
    assert {"CreateTrainingJob", "Search", "ListTags", "UpdateTrainingJob"} <= client.engine.operations
    for operation in client.engine.operations:
        service = "sagemaker-metrics" if operation == PUT_METRICS else "sagemaker"
        service_model(service).operation_model(operation)


def test_a_late_delete_leaves_the_next_job_of_the_name_alone(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request = client.request()
    client.wait(client.create(request))
    join = HostedRunner.join

    def join_late(runner: HostedRunner[Any], timeout: float | None = None) -> None:
        monkeypatch.setattr(HostedRunner, "join", join)
        client.call("DeleteTrainingJob", TrainingJobName=request["TrainingJobName"])
        client.create(request)

    monkeypatch.setattr(HostedRunner, "join", join_late)
    client.call("DeleteTrainingJob", TrainingJobName=request["TrainingJobName"])
    assert client.wait(request["TrainingJobName"])["TrainingJobStatus"] == "Completed"


def test_jobs_are_listed(client: Any) -> None:
    names = [client.submit() for _ in range(3)]
    for name in names:
        client.wait(name)
    listed = client.call("ListTrainingJobs", StatusEquals="Completed", MaxResults=2)
    assert fits_the_model("ListTrainingJobs", listed)
    assert [entry["TrainingJobName"] for entry in listed["TrainingJobSummaries"]] == names[:2]
    rest = client.call("ListTrainingJobs", StatusEquals="Completed", NextToken=listed["NextToken"])
    assert [entry["TrainingJobName"] for entry in rest["TrainingJobSummaries"]] == names[2:]


def test_jobs_are_found(client: Any) -> None:
    wanted = client.submit(HyperParameters={"lr": "0.5"}, Tags=[{"Key": "team", "Value": "red"}])
    client.submit(HyperParameters={"lr": "0.1"})
    expression = {"Filters": [{"Name": "HyperParameters.lr", "Operator": "GreaterThan", "Value": "0.2"}]}
    found = client.call("Search", Resource="TrainingJob", SearchExpression=expression)
    assert fits_the_model("Search", found)
    (result,) = found["Results"]
    assert result["TrainingJob"]["TrainingJobName"] == wanted
    assert result["TrainingJob"]["Tags"] == [{"Key": "team", "Value": "red"}]


def test_tags_come_and_go(client: Any) -> None:
    name = client.submit(Tags=[{"Key": "a", "Value": "1"}])
    arn = client.describe(name)["TrainingJobArn"]
    added = client.call("AddTags", ResourceArn=arn, Tags=[{"Key": "a", "Value": "2"}, {"Key": "b", "Value": "3"}])
    assert added == {"Tags": [{"Key": "a", "Value": "2"}, {"Key": "b", "Value": "3"}]}
    assert client.call("ListTags", ResourceArn=arn) == added
    assert client.call("DeleteTags", ResourceArn=arn, TagKeys=["a", "none"]) == {}
    assert client.call("ListTags", ResourceArn=arn) == {"Tags": [{"Key": "b", "Value": "3"}]}
    many = [{"Key": str(number), "Value": ""} for number in range(50)]
    assert "50 is the limit" in refusal(client, "AddTags", ResourceArn=arn, Tags=many)[1]
    other = arn.replace("us-east-1", "eu-west-1")
    assert "not found" in refusal(client, "ListTags", ResourceArn=other)[1]


def test_an_update_is_described(client: Any) -> None:
    name = client.submit("import time; time.sleep(60)")
    client.call("UpdateTrainingJob", TrainingJobName=name, RemoteDebugConfig={"EnableRemoteDebug": True})
    assert client.describe(name)["RemoteDebugConfig"] == {"EnableRemoteDebug": True}


def test_a_deleted_job_is_gone_and_its_name_is_free(client: Any) -> None:
    request = client.request()
    name = client.create(request)
    client.wait(name)
    client.call("DeleteTrainingJob", TrainingJobName=name)
    assert "not found" in refusal(client, "DescribeTrainingJob", TrainingJobName=name)[1]
    client.wait(client.create(request))


def test_a_running_job_is_not_deleted(client: Any) -> None:
    name = client.submit("import time; time.sleep(60)")
    code, message = refusal(client, "DeleteTrainingJob", TrainingJobName=name)
    assert (code, "stop it" in message) == ("ResourceInUse", True)


@pytest.mark.slow
def test_a_platform_that_failed_ends_its_jobs_and_starts_no_other(client: Any) -> None:
    name = client.submit("import time; time.sleep(60)")
    client.wait_for(name, "Training")
    client.engine.fail("the storage was given up")
    assert client.wait(name)["FailureReason"] == "InternalServerError: the storage was given up"
    code, message = refusal(client, "CreateTrainingJob", **client.request())
    assert (code, message) == ("ServiceUnavailable", "No job can start any more: the storage was given up")


def test_closing_twice_is_as_good_as_once(start_engine: Any, tmp_path: Path) -> None:
    engine = start_engine(directory=tmp_path / "a" / "b")
    engine.close()
    engine.close()
    assert (tmp_path / "a" / "b").is_dir()
