"""A CreateTrainingJob request, read once into a frozen value.

`validation` checks the form of single members, and `request_rules` AWS's rules between them. Members that the local
platform does not support are refused here, so no job trains with a part of its request ignored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeVar

from estimators.local.engine.errors import ApiError, invalid, refuse
from estimators.local.engine.hosted.request import (
    ML_ROOT,
    HostedRequest,
    Preferences,
    Rule,
    Support,
    parse_uri,
    read_faults,
    refuse_unsupported,
    require_path,
)
from estimators.local.engine.instance_groups import HOMOGENEOUS, MAX_HOSTS, InstanceGroup
from estimators.local.engine.records import read_tags
from estimators.local.engine.transfers.channels import InputChannel
from estimators.local.engine.transfers.folder_sync import SyncedFolder
from estimators.local.engine.transfers.objects import FileUri, S3Uri
from estimators.local.engine.validation import check_request
from estimators.metric_definition import MetricDefinition
from estimators.request_rules import DEFAULT_MAX_RUNTIME, broken_rules

DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints"


_SYNCED: Mapping[str, tuple[str, str, str]] = {
    "CheckpointConfig": ("S3Uri", DEFAULT_CHECKPOINT_PATH, ""),
    "TensorBoardOutputConfig": ("S3OutputPath", "/opt/ml/output/tensorboard", "tensorboard-output"),
    "DebugHookConfig": ("S3OutputPath", "/opt/ml/output/tensors", "debug-output"),
}
"""The members that name a folder to copy: their member with the S3 URI, LocalPath's default, and the folder in each
job's own prefix, if any. The SDK's ``EstimatorBase.latest_job_tensorboard_artifacts_path`` and
``latest_job_debugger_artifacts_path`` use the same names."""

_T = TypeVar("_T")


@dataclass(kw_only=True, slots=True, frozen=True)
class TrainingRequest(HostedRequest):
    """The part of a request that shapes the job."""

    checkpoints: SyncedFolder | None
    tensorboard: SyncedFolder | None
    tensors: SyncedFolder | None
    """The folder that the Debugger's hook writes."""
    output: S3Uri | FileUri
    compressed: bool
    """Whether each output becomes one archive, not single objects."""
    hyperparameters: Mapping[str, str]

    @classmethod
    def parse(cls, request: Mapping[str, Any]) -> TrainingRequest:
        """Check and read a request; raise ApiError if AWS or the local platform would refuse it."""
        return cls.read(check_request("CreateTrainingJob", request))

    @classmethod
    def read(cls, request: Mapping[str, Any]) -> TrainingRequest:
        """Read a request of a valid form; raise ApiError if AWS or the local platform would refuse it."""
        members = copy.deepcopy(dict(request))
        refuse(broken_rules(members))
        refuse_unsupported(members, RULES)
        algorithm, preferences = members["AlgorithmSpecification"], _preferences(members)
        output, condition = members["OutputDataConfig"], members.get("StoppingCondition", {})
        return cls(
            name=members["TrainingJobName"],
            image=algorithm["TrainingImage"],
            members=members,
            preferences=preferences,
            channels=tuple(_channels(members, algorithm["TrainingInputMode"])),
            checkpoints=_synced(members, "CheckpointConfig", "Checkpoint"),
            tensorboard=_synced(members, "TensorBoardOutputConfig", "TensorBoard"),
            tensors=_synced(members, "DebugHookConfig", "Debugger"),
            output=parse_uri(output["S3OutputPath"], "OutputDataConfig.S3OutputPath").below(
                f"{members['TrainingJobName']}/output"
            ),
            compressed=output.get("CompressionType", "GZIP") == "GZIP",
            spot=members.get("EnableManagedSpotTraining", False),
            network_isolation=members.get("EnableNetworkIsolation", False),
            max_runtime=condition.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME),
            max_wait=condition.get("MaxWaitTimeInSeconds"),
            max_pending=condition.get("MaxPendingTimeInSeconds") if _may_be_accelerated(preferences) else None,
            max_retries=members.get("RetryStrategy", {}).get("MaximumRetryAttempts", 0),
            entrypoint=tuple(algorithm.get("ContainerEntrypoint", ())),
            arguments=tuple(algorithm.get("ContainerArguments", ())),
            metrics=tuple(
                _valid(MetricDefinition.parse, metric["Name"], metric["Regex"])
                for metric in algorithm.get("MetricDefinitions", ())
            ),
            environment=members.get("Environment", {}),
            hyperparameters=members.get("HyperParameters", {}),
            tags=(tags := read_tags(members.get("Tags", ()))),
            faults=read_faults(tags, preferences, spot=members.get("EnableManagedSpotTraining", False)),
        )

    @property
    def synced_folders(self) -> tuple[SyncedFolder, ...]:
        """The folders that are copied to S3 while the job runs."""
        return tuple(folder for folder in (self.checkpoints, self.tensorboard, self.tensors) if folder is not None)


def _preferences(members: Mapping[str, Any]) -> Preferences:
    resources = members["ResourceConfig"]
    alone = {"InstanceGroupName": HOMOGENEOUS, **resources}
    preferred = [[{**alone, **each}] for each in resources.get("InstancePreferences", ())]
    preferences = tuple(
        tuple(
            InstanceGroup(
                name=group["InstanceGroupName"], instance_type=group["InstanceType"], count=group["InstanceCount"]
            )
            for group in groups
        )
        for groups in preferred or [resources.get("InstanceGroups") or [alone]]
    )
    if (total := max(sum(group.count for group in groups) for groups in preferences)) > MAX_HOSTS:
        raise ApiError(
            "ResourceLimitExceeded", f"The job asks for {total} instances; the local platform runs {MAX_HOSTS} at most."
        )
    return preferences


def _may_be_accelerated(preferences: Preferences) -> bool:
    """Return whether one of the instance types has GPUs or Trainium: MaxPendingTimeInSeconds counts for those only.

    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html
    """
    return any(group.instance_type.startswith(("ml.p", "ml.g", "ml.trn")) for groups in preferences for group in groups)


def _channels(members: Mapping[str, Any], default_mode: str) -> Iterator[InputChannel]:
    channels = members.get("InputDataConfig", ())
    _refuse_names_of_pipes({channel["ChannelName"]: channel.get("InputMode", default_mode) for channel in channels})
    for channel in channels:
        name, mode = channel["ChannelName"], channel.get("InputMode", default_mode)
        if name in (".", ".."):
            raise invalid(f"InputDataConfig: {name!r} can't be a channel's name: it is not the name of a directory.")
        source = channel["DataSource"]["S3DataSource"]
        kind, distribution = source["S3DataType"], source.get("S3DataDistributionType", "FullyReplicated")
        if kind not in ("S3Prefix", "ManifestFile", "AugmentedManifestFile"):
            raise invalid(f"Channel {name}: S3DataType {kind} is not offered by the local platform; use S3Prefix.")
        recordio, gzip = channel.get("RecordWrapperType") == "RecordIO", channel.get("CompressionType") == "Gzip"
        if recordio and gzip:
            raise invalid(f"Channel {name}: RecordIO records of Gzip objects are not offered by the local platform.")
        if gzip and kind == "AugmentedManifestFile":
            raise invalid(f"Channel {name}: Gzip of an AugmentedManifestFile is not offered by the local platform.")
        content_type = {"ContentType": channel["ContentType"]} if "ContentType" in channel else {}
        yield InputChannel(
            name=name,
            mode=mode,
            uri=parse_uri(source["S3Uri"], f"Channel {name}: S3Uri"),
            path=PurePosixPath("input", "data", name),
            manifest=kind == "ManifestFile",
            attributes=tuple(source.get("AttributeNames", ())),
            sharded=distribution == "ShardedByS3Key",
            groups=tuple(source.get("InstanceGroupNames", ())),
            seed=channel.get("ShuffleConfig", {}).get("Seed"),
            recordio=recordio,
            gzip=gzip,
            config={
                **content_type,
                "TrainingInputMode": "File" if mode == "FastFile" else mode,  # as on AWS: programs see File
                "S3DistributionType": distribution,
                "RecordWrapperType": channel.get("RecordWrapperType", "None"),
            },
        )


def _refuse_names_of_pipes(modes: Mapping[str, str]) -> None:
    for name in modes:
        pipe, _, epoch = name.rpartition("_")
        if modes.get(pipe) == "Pipe" and epoch.isdecimal():
            raise invalid(f"Channel {name}: Pipe mode gives this name to a pipe of the channel {pipe}; rename one.")


def _synced(members: Mapping[str, Any], member: str, what: str) -> SyncedFolder | None:
    """Return the folder of a member in `_SYNCED`, or None if the request lacks it."""
    config = members.get(member)
    if config is None:
        return None
    uri_member, default, below_job = _SYNCED[member]
    path = PurePosixPath(config.get("LocalPath", default))
    below = path.relative_to(ML_ROOT) if path.is_relative_to(ML_ROOT) else PurePosixPath()
    if not below.parts or ".." in below.parts or below.parts[0] == "input":
        raise invalid(
            f"{member}.LocalPath is {path}; on the local platform it must be a directory below {ML_ROOT} and "
            f"not below {ML_ROOT}/input, such as {default}."
        )
    require_path(path, f"{member}.LocalPath")
    uri = parse_uri(config[uri_member], f"{member}.{uri_member}")
    return SyncedFolder(
        what=what, uri=uri.below(f"{members['TrainingJobName']}/{below_job}") if below_job else uri, path=below
    )


def _valid(parse: Callable[..., _T], *arguments: str) -> _T:
    try:
        return parse(*arguments)
    except ValueError as error:
        raise invalid(f"AlgorithmSpecification.MetricDefinitions: {error}.") from None


_H, _R, _NO = Support.HONOURED, Support.RECORDED, Support.REFUSED

RULES: Mapping[str, Rule] = {
    "TrainingJobName": Rule(support=_H),
    "HyperParameters": Rule(support=_H),
    "Environment": Rule(support=_H),
    "Tags": Rule(support=_H),
    "AlgorithmSpecification": Rule(support=_H),
    "AlgorithmSpecification.TrainingImage": Rule(
        support=_H, note="with `executor=Docker(…)`; otherwise this Python runs the program"
    ),
    "AlgorithmSpecification.AlgorithmName": Rule(support=_NO, instead="use TrainingImage"),
    "AlgorithmSpecification.TrainingImageConfig": Rule(support=_R, note="only images that Docker has on this machine"),
    "AlgorithmSpecification.MetricDefinitions": Rule(support=_H, note="the values are in CloudWatch, too"),
    "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries": Rule(
        said=False,  # the SDK sets it in each request
        support=_R,
        note="the values are only in CloudWatch, not in SageMaker's own store",
    ),
    "InputDataConfig": Rule(support=_H),
    "InputDataConfig.ContentType": Rule(support=_H, note="passed to the script"),
    "InputDataConfig.DataSource.S3DataSource.S3DataType": Rule(support=_H, note="refused: Converse"),
    "InputDataConfig.DataSource.S3DataSource.AttributeNames": Rule(support=_H),
    "InputDataConfig.DataSource.S3DataSource.ModelAccessConfig": Rule(support=_R, said=False),
    "InputDataConfig.DataSource.S3DataSource.HubAccessConfig": Rule(support=_R),
    "InputDataConfig.DataSource.FileSystemDataSource": Rule(support=_NO, instead="use an S3DataSource"),
    "InputDataConfig.DataSource.DatasetSource": Rule(support=_NO, instead="use an S3DataSource"),
    "OutputDataConfig": Rule(support=_H),
    "OutputDataConfig.KmsKeyId": Rule(support=_R, note="nothing is encrypted"),
    "ResourceConfig": Rule(support=_H),
    "ResourceConfig.InstanceType": Rule(support=_H, note="passed to the script"),
    "ResourceConfig.InstanceCount": Rule(support=_H, note="254 hosts at most"),
    "ResourceConfig.InstanceGroups": Rule(support=_H, note="254 hosts at most"),
    "ResourceConfig.VolumeSizeInGB": Rule(support=_R, said=False, note="the disk is this machine's"),
    "ResourceConfig.VolumeKmsKeyId": Rule(support=_R, note="nothing is encrypted"),
    "ResourceConfig.KeepAlivePeriodInSeconds": Rule(
        support=_R, note="there are no warm pools: even a container's program runs 2 s after the request"
    ),
    "ResourceConfig.TrainingPlanArn": Rule(support=_R),
    "ResourceConfig.InstancePlacementConfig": Rule(support=_R),
    "ResourceConfig.InstancePreferences": Rule(support=_H, note="the first type without the fault `no-capacity`"),
    "ResourceConfig.SelectedInstanceType": Rule(support=_R),
    "ResourceConfig.SelectedInstanceCount": Rule(support=_R),
    "StoppingCondition": Rule(support=_H),
    "StoppingCondition.MaxPendingTimeInSeconds": Rule(
        support=_H, note="applies to hosts on Slurm; other hosts start at once"
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
    "ProfilerConfig": Rule(support=_R, said=False, note="nothing is profiled; the SDK always sends it"),
    "ProfilerRuleConfigurations": Rule(support=_R, note="no rule is run"),
    "TensorBoardOutputConfig": Rule(
        support=_H, note="copied to `<job>/tensorboard-output` as it is written; LocalPath below `/opt/ml`"
    ),
    "ExperimentConfig": Rule(support=_H, note="each job has a trial component"),
    "RetryStrategy": Rule(support=_H, note="restarts after errors of the platform, see below"),
    "RemoteDebugConfig": Rule(support=_R),
    "InfraCheckConfig": Rule(support=_R, said=False, note="nothing is checked"),
    "SessionChainingConfig": Rule(support=_R, said=False, note="no session is made"),
    "MlflowConfig": Rule(support=_R, note="nothing is logged to MLflow"),
    "ModelPackageConfig": Rule(support=_R, note="no model package is made"),
    "ServerlessJobConfig": Rule(support=_NO, instead="give AlgorithmSpecification"),
}
"""What the local platform does with each member of a request; docs/reference/local-platform.md lists it."""
