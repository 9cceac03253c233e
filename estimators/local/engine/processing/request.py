"""A CreateProcessingJob request, read once into a frozen value; unsupported members are refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from estimators.local.engine.errors import invalid
from estimators.local.engine.hosted.request import (
    ML_ROOT,
    HostedRequest,
    Rule,
    Support,
    parse_uri,
    read_faults,
    refuse_unsupported,
    require_path,
)
from estimators.local.engine.instance_groups import HOMOGENEOUS, InstanceGroup
from estimators.local.engine.records import read_tags
from estimators.local.engine.transfers.channels import InputChannel
from estimators.local.engine.transfers.folder_sync import SyncedFolder
from estimators.local.engine.validation import check_request
from estimators.request_rules import DEFAULT_MAX_RUNTIME

_ROOT = ML_ROOT / "processing"


@dataclass(kw_only=True, slots=True, frozen=True)
class Output(SyncedFolder):
    """A directory of every host that is uploaded to S3."""

    continuous: bool
    """Whether files are uploaded while the job runs, not at its end."""


@dataclass(kw_only=True, slots=True, frozen=True)
class ProcessingRequest(HostedRequest):
    """The part of a request that shapes the job."""

    outputs: tuple[Output, ...]

    @classmethod
    def parse(cls, request: Mapping[str, Any]) -> ProcessingRequest:
        """Check and read a request; raise ApiError if AWS or the local platform would refuse it."""
        return cls.read(check_request("CreateProcessingJob", request))

    @classmethod
    def read(cls, request: Mapping[str, Any]) -> ProcessingRequest:
        """Read a request of a valid form; raise ApiError if AWS or the local platform would refuse it."""
        members = copy.deepcopy(dict(request))
        refuse_unsupported(members, RULES)
        application = members["AppSpecification"]
        channels, outputs = tuple(_channels(members)), tuple(_outputs(members))
        _refuse_shared_paths(channels, outputs)
        preferences = ((_group(members["ProcessingResources"]["ClusterConfig"]),),)
        tags = read_tags(members.get("Tags", ()))
        return cls(
            name=members["ProcessingJobName"],
            image=application["ImageUri"],
            members=members,
            preferences=preferences,
            channels=channels,
            outputs=outputs,
            network_isolation=members.get("NetworkConfig", {}).get("EnableNetworkIsolation", False),
            max_runtime=members.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME),
            entrypoint=tuple(application.get("ContainerEntrypoint", ())),
            arguments=tuple(application.get("ContainerArguments", ())),
            environment=members.get("Environment", {}),
            tags=tags,
            faults=read_faults(tags, preferences),
        )


def _group(cluster: Mapping[str, Any]) -> InstanceGroup:
    if missing := [name for name in ("InstanceType", "InstanceCount") if name not in cluster]:
        raise invalid(f"ProcessingResources.ClusterConfig has no {' and no '.join(missing)}; give both.")
    return InstanceGroup(name=HOMOGENEOUS, instance_type=cluster["InstanceType"], count=cluster["InstanceCount"])


def _channels(members: Mapping[str, Any]) -> Iterator[InputChannel]:
    for given in members.get("ProcessingInputs", ()):
        name, source = given["InputName"], given.get("S3Input")
        if given.get("AppManaged"):
            continue
        if source is None:
            raise invalid(
                f"Input {name} has no source; give an S3Input, or AppManaged=true if the program reads the data itself."
            )
        if source.get("S3InputMode") == "Pipe":
            raise invalid(f"Input {name}: S3InputMode Pipe is not offered by the local platform; use File.")
        if source.get("S3CompressionType") == "Gzip":
            raise invalid(f"Input {name}: S3CompressionType Gzip needs S3InputMode Pipe; use None, and decompress it.")
        yield InputChannel(
            name=name,
            mode="File",
            uri=parse_uri(source["S3Uri"], f"Input {name}: S3Uri"),
            path=_local_path(source, f"Input {name}"),
            manifest=source["S3DataType"] == "ManifestFile",
            sharded=source.get("S3DataDistributionType") == "ShardedByS3Key",
        )


def _outputs(members: Mapping[str, Any]) -> Iterator[Output]:
    for given in members.get("ProcessingOutputConfig", {}).get("Outputs", ()):
        name, target = given["OutputName"], given.get("S3Output")
        if given.get("AppManaged"):
            continue
        if target is None:
            raise invalid(
                f"Output {name} has no place; give an S3Output, or AppManaged=true if the program writes to it."
            )
        yield Output(
            what="Output",
            uri=parse_uri(target["S3Uri"], f"Output {name}: S3Uri"),
            path=_local_path(target, f"Output {name}"),
            continuous=target["S3UploadMode"] == "Continuous",
        )


def _local_path(given: Mapping[str, Any], where: str) -> PurePosixPath:
    """Return a LocalPath relative to /opt/ml."""
    path = PurePosixPath(given.get("LocalPath", ""))
    below = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else PurePosixPath()
    if not below.parts or ".." in below.parts:
        raise invalid(f"{where}: LocalPath is {given.get('LocalPath')!r}; give a directory below {_ROOT}.")
    require_path(path, f"{where}: LocalPath")
    return path.relative_to(ML_ROOT)


def _refuse_shared_paths(channels: tuple[InputChannel, ...], outputs: tuple[Output, ...]) -> None:
    paths = [*(channel.path for channel in channels), *{output.path for output in outputs}]
    for path in paths:
        if paths.count(path) > 1:
            raise invalid(
                f"The LocalPath {ML_ROOT / path} is given to several inputs, or to an input and an output; give each "
                "input a directory of its own."
            )


_H, _R, _NO = Support.HONOURED, Support.RECORDED, Support.REFUSED

RULES: Mapping[str, Rule] = {
    "ProcessingJobName": Rule(support=_H),
    "ProcessingInputs": Rule(support=_H),
    "ProcessingInputs.AppManaged": Rule(support=_H, note="nothing is copied: the program copies the data"),
    "ProcessingInputs.S3Input.LocalPath": Rule(support=_H, note="below `/opt/ml/processing`; different for each input"),
    "ProcessingInputs.S3Input.S3InputMode": Rule(support=_H, note="File; refused: Pipe"),
    "ProcessingInputs.S3Input.S3CompressionType": Rule(support=_H, note="None; refused: Gzip, which needs Pipe"),
    "ProcessingInputs.DatasetDefinition": Rule(
        support=_NO,
        instead="it has neither Athena nor Redshift: put the result of the query into S3, and give it as an S3Input",
    ),
    "ProcessingOutputConfig": Rule(support=_H),
    "ProcessingOutputConfig.Outputs.S3Output.LocalPath": Rule(support=_H, note="below `/opt/ml/processing`"),
    "ProcessingOutputConfig.Outputs.S3Output.S3UploadMode": Rule(
        support=_H, note="with EndOfJob, a failed job uploads nothing"
    ),
    "ProcessingOutputConfig.Outputs.FeatureStoreOutput": Rule(support=_NO, instead="write files, and give an S3Output"),
    "ProcessingOutputConfig.Outputs.AppManaged": Rule(
        support=_H, note="nothing is copied: the program copies the data"
    ),
    "ProcessingOutputConfig.KmsKeyId": Rule(support=_R, note="nothing is encrypted"),
    "ProcessingResources": Rule(support=_H),
    "ProcessingResources.ClusterConfig.InstanceType": Rule(support=_H, note="passed to the program"),
    "ProcessingResources.ClusterConfig.VolumeSizeInGB": Rule(support=_R, said=False, note="the disk is this machine's"),
    "ProcessingResources.ClusterConfig.VolumeKmsKeyId": Rule(support=_R, note="nothing is encrypted"),
    "ProcessingResources.ClusterConfig.InstancePreferences": Rule(support=_NO, instead="give InstanceType"),
    "ProcessingResources.ClusterConfig.SelectedInstanceType": Rule(support=_R),
    "ProcessingResources.ClusterConfig.SelectedInstanceCount": Rule(support=_R),
    "StoppingCondition": Rule(support=_H),
    "AppSpecification": Rule(support=_H),
    "AppSpecification.ImageUri": Rule(
        support=_H, note="with `executor=Docker(…)`; otherwise this Python runs the program"
    ),
    "AppSpecification.ContainerEntrypoint": Rule(support=_H, note="needed without `executor=Docker(…)`"),
    "Environment": Rule(support=_H),
    "NetworkConfig": Rule(support=_H),
    "NetworkConfig.EnableInterContainerTrafficEncryption": Rule(support=_R, note="nothing leaves this machine"),
    "NetworkConfig.EnableNetworkIsolation": Rule(
        support=_H, note="with `executor=Docker(…)`; otherwise a line in the log says that it has no effect"
    ),
    "NetworkConfig.VpcConfig": Rule(support=_R, note="hosts are in no VPC"),
    "RoleArn": Rule(support=_R, said=False, note="no role is assumed"),
    "Tags": Rule(support=_H),
    "ExperimentConfig": Rule(support=_H, note="each job has a trial component"),
}
"""What the local platform does with each member of a request; docs/reference/local-platform.md lists it."""
