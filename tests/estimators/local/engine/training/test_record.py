"""A description has the members that AWS adds to a request: the SDK reads them unasked."""

from __future__ import annotations

from typing import Any

from estimators.local.engine.training.record import describe_request

REQUEST: dict[str, Any] = {
    "TrainingJobName": "job",
    "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "Pipe"},
    "RoleArn": "arn:aws:iam::123456789012:role/training",
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/output/"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
}
SOURCE = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/data"}}


def test_defaults_are_those_of_aws() -> None:
    channels = [{"ChannelName": "a", "DataSource": SOURCE}]
    described = describe_request({**REQUEST, "InputDataConfig": channels}, {})
    assert described["OutputDataConfig"] == {
        "S3OutputPath": "s3://bucket/output/",
        "KmsKeyId": "",
        "CompressionType": "GZIP",
    }
    (channel,) = described["InputDataConfig"]
    assert (channel["CompressionType"], channel["RecordWrapperType"]) == ("None", "None")
    assert channels == [{"ChannelName": "a", "DataSource": SOURCE}]


def test_what_was_asked_for_is_shown_as_it_was() -> None:
    channel = {"ChannelName": "a", "DataSource": SOURCE, "CompressionType": "Gzip", "RecordWrapperType": "RecordIO"}
    output = {"S3OutputPath": "s3://bucket/", "KmsKeyId": "key", "CompressionType": "NONE"}
    described = describe_request({**REQUEST, "InputDataConfig": [channel], "OutputDataConfig": output}, {})
    assert described["InputDataConfig"] == [channel]
    assert described["OutputDataConfig"] == output


def test_members_that_aws_does_not_show_are_not_shown() -> None:
    members = {**REQUEST, "Tags": [], "SessionChainingConfig": {"EnableSessionTagChaining": False}}
    assert not describe_request(members, {}).keys() & {"Tags", "SessionChainingConfig"}
