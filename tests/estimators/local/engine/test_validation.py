"""Requests are held to all of botocore's model, also to what botocore leaves to the service."""

from __future__ import annotations

import re
from typing import Any

import pytest

from estimators.local.engine import ApiError
from estimators.local.engine.validation import check_request
from tests.estimators.local.engine.training.test_request import REQUEST


def refusal(operation: str, **request: Any) -> str:
    with pytest.raises(ApiError) as error:
        check_request(operation, request)
    assert (error.value.code, error.value.status) == ("ValidationException", 400)
    return error.value.message


def test_a_good_request_is_returned() -> None:
    assert check_request("DescribeTrainingJob", {"TrainingJobName": "a-1"}) == {"TrainingJobName": "a-1"}


def test_missing_members_are_named() -> None:
    message = refusal("CreateTrainingJob", TrainingJobName="a")
    assert "RoleArn" in message
    assert "OutputDataConfig" in message


def test_unknown_members_and_wrong_types_are_named() -> None:
    assert "TrainingJobNam" in refusal("DescribeTrainingJob", TrainingJobNam="a")
    assert "MaxResults" in refusal("ListTrainingJobs", MaxResults="ten")


def test_a_number_that_is_no_time_is_refused() -> None:
    assert "a time is out of range" in refusal("ListTrainingJobs", CreationTimeAfter=1e300)


def test_a_pattern_that_python_cannot_express_is_left_to_aws() -> None:
    request = {"ModelPackageGroupName": "a", "ModelPackageGroupDescription": "ä 5"}
    assert check_request("CreateModelPackageGroup", request) == request
    metadata = {"ModelPackageArn": "arn:aws:sagemaker:us-east-1:123456789012:model-package/a/1"}
    metadata |= {"CustomerMetadataPropertiesToRemove": ["a"]}
    assert check_request("UpdateModelPackage", metadata) == metadata


def test_true_is_no_number() -> None:
    assert "at 'MaxResults' failed to satisfy constraint: Member must be of type integer" in refusal(
        "ListTrainingJobs", MaxResults=True
    )


def test_a_request_that_is_no_structure_is_refused() -> None:
    with pytest.raises(ApiError, match="Invalid type"):
        check_request("DescribeTrainingJob", ["a"])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["-a", "a-", "a_b", "ä", "a\n"])
def test_patterns_are_matched_against_the_whole_text(name: str) -> None:
    message = refusal("DescribeTrainingJob", TrainingJobName=name)
    assert "at 'TrainingJobName' failed to satisfy constraint: Member must satisfy regular expression" in message


def test_upper_limits_hold_for_texts_numbers_lists_and_maps() -> None:
    assert "length less than or equal to 63; it has 64" in refusal("StopTrainingJob", TrainingJobName="a" * 64)
    assert "value less than or equal to 100" in refusal("ListTrainingJobs", MaxResults=101)
    arn = "arn:aws:sagemaker:us-east-1:123456789012:training-job/a"
    tags = [{"Key": str(number), "Value": ""} for number in range(51)]
    assert "length less than or equal to 50; it has 51" in refusal("AddTags", ResourceArn=arn, Tags=tags)
    assert "at 'Tags[0].Value'" in refusal("AddTags", ResourceArn=arn, Tags=[{"Key": "k", "Value": "v" * 257}])


@pytest.mark.parametrize("number", [2**31, 10**400], ids=["33 bits", "beyond all floats"])
def test_a_whole_number_must_fit_the_services_type(number: int) -> None:
    resources = {"VolumeSizeInGB": number, "InstanceType": "ml.m5.large", "InstanceCount": 1}
    message = refusal("CreateTrainingJob", **{**REQUEST, "ResourceConfig": resources})
    assert re.search(
        r"Value \d{10,100} at 'ResourceConfig.VolumeSizeInGB' failed .* less than or equal to 2147483647", message
    )


def test_map_keys_and_values_are_checked() -> None:
    request = {
        "TrainingJobName": "a",
        "RoleArn": "arn:aws:iam::123456789012:role/r",
        "OutputDataConfig": {"S3OutputPath": "s3://bucket"},
        "Environment": {"1 bad": "x", "good": "y" * 513},
        "HyperParameters": {"epochs": "1" * 2501},
    }
    message = refusal("CreateTrainingJob", **request)
    assert message.startswith("3 validation errors detected")
    assert "Value '1 bad' at 'Environment (key)'" in message
    assert "at 'Environment.good'" in message
    assert "at 'HyperParameters.epochs'" in message
    assert len(message) < 1000


def test_short_enums_are_listed_and_long_ones_name_the_nearest() -> None:
    assert "Ascending, Descending" in refusal("ListTrainingJobs", SortOrder="Up")
    message = refusal(
        "CreateTrainingJob",
        TrainingJobName="a",
        RoleArn="arn:aws:iam::123456789012:role/r",
        OutputDataConfig={"S3OutputPath": "s3://bucket"},
        ResourceConfig={"InstanceType": "ml.g5.xlrge"},
    )
    assert "ml.g5.xlarge" in message
    assert len(message) < 400


@pytest.mark.parametrize("key", ["cost center", "größe", "a_b.c:/=+-@", "№5"])
def test_javas_classes_of_letters_are_understood(key: str) -> None:
    arn = "arn:aws:sagemaker:us-east-1:123456789012:training-job/a"
    if key == "№5":
        assert "regular expression" in refusal("DeleteTags", ResourceArn=arn, TagKeys=[key])
    else:
        check_request("DeleteTags", {"ResourceArn": arn, "TagKeys": [key]})
