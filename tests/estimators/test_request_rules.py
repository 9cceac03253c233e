"""Rules of CreateTrainingJob for requests that the SDK does not make, and what they say of one that is right."""

from __future__ import annotations

from typing import Any

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from estimators.request_rules import broken_by_tags, broken_rules
from estimators.service_model import service_model

REQUEST: dict[str, Any] = {
    "TrainingJobName": "job",
    "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
    "RoleArn": "arn:aws:iam::123456789012:role/training",
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/output/"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1},
    "StoppingCondition": {"MaxRuntimeInSeconds": 600},
}
PREFERENCES = [{"InstanceType": "ml.g5.xlarge"}, {"InstanceType": "ml.m5.xlarge"}]
TRAINING_TYPES = sorted(service_model().shape_for("TrainingInstanceType").enum)  # type: ignore[attr-defined]


def said(**members: Any) -> list[str]:
    return [str(broken) for broken in broken_rules(REQUEST | members)]


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"AlgorithmSpecification": {"AlgorithmName": "mine", "TrainingInputMode": "File"}},
        {"ResourceConfig": {"InstancePreferences": PREFERENCES, "InstanceCount": 1}},
        {"EnableManagedSpotTraining": True, "StoppingCondition": {"MaxRuntimeInSeconds": 9, "MaxWaitTimeInSeconds": 9}},
        {"HyperParameters": {"S3Uri": "data"}, "Environment": {"S3OutputPath": "/out"}},
        {"DebugHookConfig": {"S3OutputPath": "s3://b", "CollectionConfigurations": [{}, {}, {"CollectionName": "a"}]}},
    ],
)
def test_a_request_that_is_right_breaks_no_rule(members: dict[str, Any]) -> None:
    assert said(**members) == []


def test_a_serverless_job_names_neither_image_nor_instances() -> None:
    left_out = {"AlgorithmSpecification", "ResourceConfig"}
    serverless = {name: value for name, value in REQUEST.items() if name not in left_out}
    assert len(list(broken_rules(serverless))) == 2
    assert not list(broken_rules({**serverless, "ServerlessJobConfig": {"JobType": "FineTuning"}}))


def channel(name: str, *groups: str) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": "s3://b/data", **({"InstanceGroupNames": groups} if groups else {})}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}}


def test_channels_are_all_for_instance_groups_or_none() -> None:
    groups = {"InstanceGroups": [{"InstanceGroupName": "g", "InstanceType": "ml.m5.xlarge", "InstanceCount": 1}]}
    job = {"ResourceConfig": {**groups, "VolumeSizeInGB": 1}}
    assert said(**job, InputDataConfig=[channel("a", "g"), channel("b", "g")]) == []
    assert said(**job, InputDataConfig=[channel("a"), channel("b")]) == []
    (broken,) = said(**job, InputDataConfig=[channel("a", "g"), channel("b"), channel("c")])
    assert broken.startswith(
        "InputDataConfig: Some channels have assigned instance groups: [a] while others not: [b, c]. Name groups"
    )


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (
            {"ResourceConfig": {"InstancePreferences": PREFERENCES}},
            "ResourceConfig.InstancePreferences: InstanceCount is in 0 of 2 preferences, and not in ResourceConfig.",
        ),
        (
            {"ResourceConfig": {"InstancePreferences": [{"InstanceType": "ml.g5.xlarge", "InstanceCount": 0}]}},
            "ResourceConfig.InstancePreferences[0]: InstanceCount is 0. InstanceCount must be at least 1.",
        ),
        (
            {
                "ResourceConfig": {
                    "InstancePreferences": [{"InstanceType": "ml.g5.xlarge", "InstanceCount": 1}, *PREFERENCES[1:]]
                }
            },
            "ResourceConfig.InstancePreferences: InstanceCount is in 1 of 2 preferences, and not in ResourceConfig.",
        ),
        (
            {"ResourceConfig": {"InstancePreferences": PREFERENCES * 2, "InstanceCount": 1}},
            "ResourceConfig.InstancePreferences: ml.g5.xlarge, ml.m5.xlarge comes more than once.",
        ),
        (
            {
                "ResourceConfig": {"InstancePreferences": PREFERENCES, "InstanceCount": 1},
                "EnableManagedSpotTraining": True,
                "StoppingCondition": {"MaxRuntimeInSeconds": 9, "MaxWaitTimeInSeconds": 9},
            },
            "ResourceConfig.InstancePreferences: it is mutually exclusive with EnableManagedSpotTraining.",
        ),
        (
            {
                "ResourceConfig": {
                    "InstanceType": "ml.m5.large",
                    "InstanceCount": 1,
                    "SelectedInstanceType": "ml.m5.large",
                }
            },
            "ResourceConfig: it has SelectedInstanceType, which the service alone writes. Leave it out.",
        ),
        (
            {
                "DebugRuleConfigurations": [{"RuleConfigurationName": "r", "RuleEvaluatorImage": "i"}],
                "ProfilerRuleConfigurations": [{"RuleConfigurationName": "r", "RuleEvaluatorImage": "i"}],
            },
            "ProfilerRuleConfigurations: r names a Debugger rule, too.",
        ),
    ],
)
def test_what_stands_against_what_is_told_once(members: dict[str, Any], expected: str) -> None:
    (broken,) = said(**members)
    assert broken.startswith(expected)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (
            {"AlgorithmSpecification": {"TrainingImage": "a", "AlgorithmName": "b", "TrainingInputMode": "File"}},
            "AlgorithmSpecification: it has both TrainingImage and AlgorithmName. Give one of the two.",
        ),
        (
            {"ResourceConfig": {"InstancePreferences": PREFERENCES, "InstanceType": "ml.m5.large", "InstanceCount": 1}},
            "ResourceConfig: it has InstanceCount, InstancePreferences, InstanceType. It must have either InstanceType "
            "with InstanceCount, or InstanceGroups, or InstancePreferences.",
        ),
        (
            {"ResourceConfig": {"InstancePreferences": PREFERENCES, "InstanceCount": 1, "VolumeKmsKeyId": "key"}},
            "ResourceConfig.VolumeKmsKeyId: the volume of ml.g5.xlarge is local NVMe storage, which its hardware "
            "encrypts. Leave the key out, or use an instance type without local storage.",
        ),
        (
            {
                "DebugHookConfig": {
                    "S3OutputPath": "s3://b",
                    "CollectionConfigurations": [{"CollectionName": "a"}, {"CollectionName": "a"}],
                }
            },
            "DebugHookConfig.CollectionConfigurations: a comes more than once. Each must be unique.",
        ),
        (
            {
                "ProfilerRuleConfigurations": [
                    {"RuleConfigurationName": "a", "RuleEvaluatorImage": "i", "S3OutputPath": "https://s3/b"}
                ]
            },
            "ProfilerRuleConfigurations[0].S3OutputPath: 'https://s3/b' is not an S3 URI. Give s3://bucket/prefix.",
        ),
        (
            {"InputDataConfig": [{"ChannelName": "a", "DataSource": {"S3DataSource": {"S3Uri": "./data"}}}]},
            "InputDataConfig[0].DataSource.S3DataSource.S3Uri: './data' is not an S3 URI. Upload it, and give the URI: "
            "aws s3 cp --recursive ./data s3://bucket/prefix",
        ),
    ],
)
def test_what_stands_against_what_is_said_with_its_place(members: dict[str, Any], expected: str) -> None:
    assert said(**members) == [expected]


def test_a_request_may_break_several_rules() -> None:
    condition = {"MaxRuntimeInSeconds": 2419201, "MaxWaitTimeInSeconds": 9}
    found = said(StoppingCondition=condition, Tags=[{"Key": "AWS:a", "Value": ""}])
    assert [text.partition(":")[0] for text in found] == [
        "StoppingCondition.MaxRuntimeInSeconds",
        "StoppingCondition.MaxWaitTimeInSeconds",
        "Tags[0]",
    ]


def test_tags_are_looked_at_alone_too() -> None:
    tags = [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]
    assert [str(broken) for broken in broken_by_tags(tags)] == ["Tags: a comes more than once. Each must be unique."]


@pytest.mark.parametrize("instance_type", [name for name in TRAINING_TYPES if name[3:] in INSTANCE_TYPES])
def test_a_key_is_refused_for_each_type_that_ec2_says_to_have_local_storage(instance_type: str) -> None:
    resources = {"InstanceType": instance_type, "InstanceCount": 1, "VolumeKmsKeyId": "key"}
    local = INSTANCE_TYPES[instance_type[3:]].get("InstanceStorageSupported", False)
    assert bool(said(ResourceConfig=resources)) == local
