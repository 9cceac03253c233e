"""What the local platform does with each member of a request; docs/reference/local-platform.md lists it.

The rules here are CreateTrainingJob's; another kind of job has its rules beside its request.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class Support(enum.Enum):
    """What the platform does with a member."""

    HONOURED = "honoured"
    RECORDED = "recorded"
    """The job's description shows the member, which has no effect; the job's log says so."""
    REFUSED = "refused"


@dataclass(kw_only=True, slots=True, frozen=True)
class Rule:
    """The fate of one member, and of its nested members without a rule of their own."""

    support: Support
    note: str = ""
    """A remark for the table in the docs."""
    said: bool = True
    """Whether the log says that the member is only recorded; False if it could have no effect here."""


_H, _R, _NO = Support.HONOURED, Support.RECORDED, Support.REFUSED

RULES: Mapping[str, Rule] = {
    "TrainingJobName": Rule(support=_H),
    "HyperParameters": Rule(support=_H),
    "Environment": Rule(support=_H),
    "Tags": Rule(support=_H),
    "AlgorithmSpecification": Rule(support=_H),
    "AlgorithmSpecification.TrainingImage": Rule(
        support=_H, note="with `executor=Docker(…)`; else the program is run in this Python"
    ),
    "AlgorithmSpecification.AlgorithmName": Rule(support=_NO),
    "AlgorithmSpecification.TrainingImageConfig": Rule(support=_R, note="images come from where Docker has them"),
    "AlgorithmSpecification.MetricDefinitions": Rule(support=_H, note="the values are in CloudWatch, too"),
    "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries": Rule(
        support=_R, note="the values are in CloudWatch, and not in SageMaker's own store"
    ),
    "InputDataConfig": Rule(support=_H),
    "InputDataConfig.ContentType": Rule(support=_H, note="as what the script is told"),
    "InputDataConfig.DataSource.S3DataSource.S3DataType": Rule(support=_H, note="refused: Converse"),
    "InputDataConfig.DataSource.S3DataSource.AttributeNames": Rule(support=_H),
    "InputDataConfig.DataSource.S3DataSource.ModelAccessConfig": Rule(support=_R, said=False),
    "InputDataConfig.DataSource.S3DataSource.HubAccessConfig": Rule(support=_R),
    "InputDataConfig.DataSource.FileSystemDataSource": Rule(support=_NO),
    "InputDataConfig.DataSource.DatasetSource": Rule(support=_NO),
    "OutputDataConfig": Rule(support=_H),
    "OutputDataConfig.KmsKeyId": Rule(support=_R, note="nothing is encrypted"),
    "ResourceConfig": Rule(support=_H),
    "ResourceConfig.InstanceType": Rule(support=_H, note="as what the script is told"),
    "ResourceConfig.InstanceCount": Rule(support=_H, note="254 hosts at most"),
    "ResourceConfig.InstanceGroups": Rule(support=_H, note="254 hosts at most"),
    "ResourceConfig.VolumeSizeInGB": Rule(support=_R, said=False, note="the disk is this machine's"),
    "ResourceConfig.VolumeKmsKeyId": Rule(support=_R, note="nothing is encrypted"),
    "ResourceConfig.KeepAlivePeriodInSeconds": Rule(
        support=_R, note="there are no warm pools: even a container's program runs 2 s after the request"
    ),
    "ResourceConfig.TrainingPlanArn": Rule(support=_R),
    "ResourceConfig.InstancePlacementConfig": Rule(support=_R),
    "ResourceConfig.InstancePreferences": Rule(
        support=_H, note="the first, unless chaos has `no-capacity` for its type"
    ),
    "ResourceConfig.SelectedInstanceType": Rule(support=_R),
    "ResourceConfig.SelectedInstanceCount": Rule(support=_R),
    "StoppingCondition": Rule(support=_H),
    "StoppingCondition.MaxPendingTimeInSeconds": Rule(
        support=_H, note="hosts that are tasks of Slurm may be waited for; others are there at once"
    ),
    "CheckpointConfig": Rule(support=_H, note="LocalPath below `/opt/ml`"),
    "EnableManagedSpotTraining": Rule(support=_H),
    "EnableNetworkIsolation": Rule(
        support=_H, note="with `executor=Docker(…)`; hosts that are processes share a network"
    ),
    "EnableInterContainerTrafficEncryption": Rule(support=_R, note="nothing leaves this machine"),
    "RoleArn": Rule(support=_R, said=False, note="no role is assumed"),
    "VpcConfig": Rule(support=_R, note="hosts are in no VPC"),
    "DebugHookConfig": Rule(
        support=_H,
        note="copied to `<job>/debug-output` as it is written, by the script's smdebug; LocalPath below `/opt/ml`",
    ),
    "DebugRuleConfigurations": Rule(support=_R, note="no rule is run"),
    "ProfilerConfig": Rule(support=_R, said=False, note="nothing is profiled; the SDK sends it by itself"),
    "ProfilerRuleConfigurations": Rule(support=_R, note="no rule is run"),
    "TensorBoardOutputConfig": Rule(
        support=_H, note="copied to `<job>/tensorboard-output` as it is written; LocalPath below `/opt/ml`"
    ),
    "ExperimentConfig": Rule(support=_H, note="each job has a trial component"),
    "RetryStrategy": Rule(support=_H, note="see below: what the platform has failed is run again"),
    "RemoteDebugConfig": Rule(support=_R),
    "InfraCheckConfig": Rule(support=_R, said=False, note="the machine is yours"),
    "SessionChainingConfig": Rule(support=_R, said=False, note="no session is made"),
    "MlflowConfig": Rule(support=_R, note="nothing is logged there"),
    "ModelPackageConfig": Rule(support=_R, note="no model package is made"),
    "ServerlessJobConfig": Rule(support=_NO),
}


def rule_of(path: str, rules: Mapping[str, Rule] = RULES) -> Rule | None:
    """Return the rule of a member, such as ``VpcConfig.Subnets``, or of its nearest parent with a rule; else None."""
    while path and path not in rules:
        path = path.rpartition(".")[0]
    return rules.get(path)


def only_recorded(members: Mapping[str, Any], rules: Mapping[str, Rule] = RULES) -> list[str]:
    """Return the paths of a request's members that have no effect though the author may expect one."""
    asked = dict.fromkeys(_paths(members))
    return [path for path, rule in rules.items() if path in asked and rule.support is Support.RECORDED and rule.said]


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all members in a request that are neither false nor empty."""
    if isinstance(value, list):
        for each in value:
            yield from _paths(each, path)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if inner not in (False, "", [], {}):
                yield (inside := f"{path}.{name}".lstrip("."))
                yield from _paths(inner, inside)
