"""The rules between the members of a CreateTrainingJob request, and how they are read."""

from __future__ import annotations

from copy import deepcopy
from pathlib import PurePosixPath
from typing import Any

import pytest

from estimators.local.engine import ApiError
from estimators.local.engine.instance_groups import InstanceGroup
from estimators.local.engine.training.request import TrainingRequest

REQUEST: dict[str, Any] = {
    "TrainingJobName": "job",
    "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
    "RoleArn": "arn:aws:iam::123456789012:role/training",
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/output/"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1},
}
FILE_SYSTEM = {
    "FileSystemId": "fs-0123456789abcdef0",
    "FileSystemAccessMode": "ro",
    "FileSystemType": "EFS",
    "DirectoryPath": "/data",
}
SOURCE = {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/data"}
AUGMENTED = SOURCE | {"S3DataType": "AugmentedManifestFile", "AttributeNames": ["image"]}
VPC = {"VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}}


def channel(name: str = "training", *, source: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    return {"ChannelName": name, "DataSource": {"S3DataSource": source or SOURCE}, **members}


def groups(*counts: int) -> list[dict[str, Any]]:
    return [
        {"InstanceGroupName": f"group-{number}", "InstanceType": "ml.m5.large", "InstanceCount": count}
        for number, count in enumerate(counts)
    ]


def parse(**members: Any) -> TrainingRequest:
    return TrainingRequest.parse(REQUEST | members)


def test_a_plain_request_is_read() -> None:
    request = parse()
    assert request.groups == (InstanceGroup(name="homogeneousCluster", instance_type="ml.m5.large", count=2),)
    assert str(request.output) == "s3://bucket/output/job/output"
    assert (request.max_runtime, request.max_wait, request.spot) == (86400, None, False)
    assert request.compressed
    assert (request.channels, request.checkpoints, request.metrics) == ((), None, ())


def test_the_request_is_kept_as_it_was() -> None:
    given = deepcopy(REQUEST) | {"HyperParameters": {"a": "1"}}
    request = TrainingRequest.parse(given)
    given["HyperParameters"]["a"] = "2"
    assert request.hyperparameters == {"a": "1"}


def test_channels_are_read() -> None:
    (read,) = parse(InputDataConfig=[channel(ContentType="text/csv", InputMode="File")]).channels
    assert (read.name, str(read.uri), read.manifest, read.sharded) == ("training", "s3://bucket/data", False, False)
    assert read.config == {
        "ContentType": "text/csv",
        "TrainingInputMode": "File",
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": "None",
    }


def test_a_channel_in_pipe_mode_says_so_and_one_in_fastfile_mode_is_a_file_to_the_program() -> None:
    pipe, fast = parse(
        AlgorithmSpecification={"TrainingImage": "image", "TrainingInputMode": "Pipe"},
        InputDataConfig=[channel(RecordWrapperType="RecordIO"), channel("fast", InputMode="FastFile")],
    ).channels
    assert (pipe.mode, pipe.recordio, pipe.gzip) == ("Pipe", True, False)
    assert (pipe.config["TrainingInputMode"], pipe.config["RecordWrapperType"]) == ("Pipe", "RecordIO")
    assert (fast.mode, fast.config["TrainingInputMode"]) == ("FastFile", "File")


@pytest.mark.parametrize(
    ("path", "below"), [("/opt/ml/checkpoints", "checkpoints"), ("/opt/ml/state/now/", "state/now")]
)
def test_the_checkpoint_directory_may_be_anywhere_below_opt_ml(path: str, below: str) -> None:
    checkpoints = parse(CheckpointConfig={"S3Uri": "s3://bucket/c", "LocalPath": path}).checkpoints
    assert checkpoints is not None
    assert checkpoints.path == PurePosixPath(below)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"AlgorithmSpecification": {"TrainingInputMode": "File"}}, "neither TrainingImage nor AlgorithmName"),
        (
            {"AlgorithmSpecification": {"TrainingInputMode": "File", "AlgorithmName": "a"}},
            "AlgorithmName is not offered",
        ),
        ({"ResourceConfig": {}}, "either InstanceType with InstanceCount, or InstanceGroups"),
        ({"ResourceConfig": {"InstanceType": "ml.m5.large"}}, "InstanceCount must be at least 1"),
        (
            {"ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "InstanceGroups": groups(1)}},
            "either InstanceType",
        ),
        ({"ResourceConfig": {"InstanceGroups": groups(1), "InstanceCount": 2}}, "either InstanceType"),
        ({"ResourceConfig": {"InstanceGroups": groups(1), "InstanceCount": 0}}, "either InstanceType"),
        (
            {"ResourceConfig": {"InstancePreferences": [{"InstanceType": "ml.m5.large", "InstanceCount": 255}]}},
            "asks for 255 instances",
        ),
        ({"ResourceConfig": {"InstanceGroups": groups(1, 0)}}, "InstanceCount must be at least 1"),
        ({"ResourceConfig": {"InstanceGroups": groups(200, 55)}}, "asks for 255 instances"),
        (
            {"ResourceConfig": {"InstanceGroups": groups(1), "KeepAlivePeriodInSeconds": 60}},
            "instance groups can't be kept in a warm pool",
        ),
        ({"ResourceConfig": {"InstanceGroups": groups(1) * 2}}, "group-0 comes more than once"),
        ({"StoppingCondition": {"MaxRuntimeInSeconds": 2419201}}, "28 days"),
        ({"EnableManagedSpotTraining": True}, "MaxWaitTimeInSeconds None. It must be present"),
        (
            {
                "EnableManagedSpotTraining": True,
                "StoppingCondition": {"MaxRuntimeInSeconds": 9, "MaxWaitTimeInSeconds": 8},
            },
            "greater than or equal to MaxRuntimeInSeconds (9)",
        ),
        (
            {"StoppingCondition": {"MaxRuntimeInSeconds": 9, "MaxWaitTimeInSeconds": 9}},
            "only for managed spot training",
        ),
        ({"InputDataConfig": [channel(), channel()]}, "training comes more than once"),
        ({"InputDataConfig": [channel("..")]}, "can't be a channel's name"),
        (
            {"InputDataConfig": [channel(RecordWrapperType="RecordIO")]},
            "the channel training has RecordWrapperType RecordIO in File mode. RecordIO is only",
        ),
        (
            {"InputDataConfig": [channel(source=SOURCE | {"S3DataType": "ManifestFile"}, InputMode="FastFile")]},
            "the channel training is a ManifestFile. FastFile mode must use a S3DataType of S3Prefix",
        ),
        ({"InputDataConfig": [channel(InputMode="FastFile", CompressionType="Gzip")]}, "Gzip is only for Pipe mode"),
        (
            {"InputDataConfig": [channel(InputMode="Pipe", RecordWrapperType="RecordIO", CompressionType="Gzip")]},
            "RecordIO records of Gzip objects are not offered",
        ),
        (
            {"InputDataConfig": [channel("a", InputMode="Pipe"), channel("a_12")]},
            "Channel a_12: Pipe mode gives this name to a pipe of the channel a",
        ),
        ({"InputDataConfig": [{"ChannelName": "a", "DataSource": {}}]}, "the channel a has nothing for a DataSource"),
        (
            {"InputDataConfig": [{"ChannelName": "a", "DataSource": {"FileSystemDataSource": FILE_SYSTEM}}]},
            "the channel a is in a file system, and the job is in no VPC",
        ),
        (
            {"InputDataConfig": [{"ChannelName": "a", "DataSource": {"FileSystemDataSource": FILE_SYSTEM}}], **VPC},
            "use an S3DataSource",
        ),
        (
            {
                "InputDataConfig": [
                    {"ChannelName": "a", "DataSource": {"S3DataSource": SOURCE, "FileSystemDataSource": FILE_SYSTEM}}
                ]
            },
            "has FileSystemDataSource and S3DataSource for a DataSource. It must have exactly one",
        ),
        (
            {"InputDataConfig": [channel(source=SOURCE | {"AttributeNames": ["a"]})]},
            "only for AugmentedManifestFile",
        ),
        (
            {"DebugRuleConfigurations": [{"RuleConfigurationName": "a", "RuleEvaluatorImage": "image"}] * 2},
            "a comes more than once",
        ),
        ({"HyperParameters": {"a": "b\0c"}}, "must not have the character U+0000"),
        ({"Environment": {"A": "b\0c"}}, "must not have the character U+0000"),
        ({"InputDataConfig": [channel(source=AUGMENTED)]}, "can only be used in Pipe mode"),
        (
            {"InputDataConfig": [channel(source=AUGMENTED, InputMode="Pipe", CompressionType="Gzip")]},
            "not offered by the local platform",
        ),
        (
            {"InputDataConfig": [channel(source=SOURCE | {"S3DataType": "Converse"})]},
            "not offered by the local platform",
        ),
        (
            {"InputDataConfig": [channel(source=SOURCE | {"InstanceGroupNames": ["gpu"]})]},
            "the instance groups gpu. The job's instance groups have no names",
        ),
        ({"InputDataConfig": [channel(source=SOURCE | {"S3Uri": "https://bucket/x"})]}, "s3://bucket/prefix"),
        ({"OutputDataConfig": {"S3OutputPath": "https://s3/x"}}, "OutputDataConfig.S3OutputPath"),
        ({"CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/tmp/c"}}, "must be a directory below /opt/ml"),
        ({"DebugHookConfig": {"S3OutputPath": "s3://b/c", "LocalPath": "/tmp/c"}}, "must be a directory below /opt/ml"),
        ({"CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/opt/ml"}}, "must be a directory below /opt/ml"),
        ({"CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/../x"}}, "must be a directory below"),
        ({"CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/input/data/x"}}, "not below /opt/ml/input"),
        ({"CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/" + "x" * 256}}, "Give a shorter path"),
        ({"DebugHookConfig": {"S3OutputPath": "s3://b/c", "LocalPath": "/opt/ml" + "/x" * 600}}, "Give a shorter path"),
        ({"CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/\ud800"}}, "which is not UTF-8"),
        ({"Tags": [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]}, "a comes more than once"),
        ({"Tags": [{"Key": "aws:a", "Value": "1"}]}, "reserved for AWS"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(members: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as error:
        parse(**members)
    assert said in error.value.message


@pytest.mark.parametrize(("regex", "said"), [("loss=(", "can't be compiled"), ("loss=[0-9]+", "has no group")])
def test_metric_regexes_are_checked(regex: str, said: str) -> None:
    algorithm = REQUEST["AlgorithmSpecification"] | {"MetricDefinitions": [{"Name": "loss", "Regex": regex}]}
    with pytest.raises(ApiError, match=said):
        parse(AlgorithmSpecification=algorithm)


def test_more_hosts_than_the_platform_runs_are_refused() -> None:
    many = {**REQUEST["ResourceConfig"], "InstanceCount": 10_000}
    with pytest.raises(ApiError, match=r"The job asks for 10000 instances; the local platform runs [0-9]+ at most"):
        TrainingRequest.parse({**REQUEST, "ResourceConfig": many})
