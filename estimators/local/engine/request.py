"""A CreateTrainingJob request, read once into a frozen value.

The form of single members is `validation`'s, AWS's rules between them are `request_rules`'. What the local platform
does not do is refused here, so that no job trains with a part of its request ignored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, TypeVar

from estimators.local.engine.errors import ApiError, invalid
from estimators.local.engine.hosts import HOMOGENEOUS, MAX_HOSTS, InstanceGroup
from estimators.local.engine.local_files import LocalFiles
from estimators.local.engine.objects import FileUri, S3Uri
from estimators.local.engine.validation import check_request
from estimators.metric_definition import MetricDefinition
from estimators.request_rules import DEFAULT_MAX_RUNTIME, BrokenRule, broken_by_tags, broken_rules

ML_ROOT = PurePosixPath("/opt/ml")
DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints"

InputMode = Literal["File", "FastFile", "Pipe"]

_T = TypeVar("_T")


@dataclass(kw_only=True, slots=True, frozen=True)
class Channel:
    """One input channel, from S3."""

    name: str
    mode: InputMode
    uri: S3Uri
    manifest: bool
    """Whether ``uri`` is a manifest's, and not a prefix."""
    sharded: bool
    """Whether each host gets its share of the objects, and not all of them."""
    groups: tuple[str, ...]
    """The instance groups that get it; empty: all."""
    seed: int | None
    """Shuffles the objects before they are shared out; in Pipe mode anew for each epoch."""
    recordio: bool
    """Whether each object is sent as a RecordIO record; only in Pipe mode."""
    gzip: bool
    """Whether objects are decompressed as they are sent; only in Pipe mode."""
    config: Mapping[str, str]
    """Its entry in inputdataconfig.json."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Checkpoints:
    """Where checkpoints are kept."""

    uri: S3Uri
    path: PurePosixPath
    """The directory, relative to /opt/ml."""


@dataclass(kw_only=True, slots=True, frozen=True)
class TrainingRequest:
    """All of a request that shapes the job."""

    name: str
    image: str
    members: Mapping[str, Any]
    """The request itself, for those who asked for it."""
    groups: tuple[InstanceGroup, ...]
    channels: tuple[Channel, ...]
    checkpoints: Checkpoints | None
    output: S3Uri | FileUri
    compressed: bool
    """Whether the outputs become one archive each, and not single objects."""
    spot: bool
    network_isolation: bool
    max_runtime: int
    """Seconds of training, over all attempts."""
    max_wait: int | None
    """Seconds since the job's creation; None without spot."""
    entrypoint: tuple[str, ...]
    """The program to run instead of the image's; empty: the image's."""
    arguments: tuple[str, ...]
    metrics: tuple[MetricDefinition, ...]
    environment: Mapping[str, str]
    hyperparameters: Mapping[str, str]
    tags: Mapping[str, str]
    files: LocalFiles | None = None
    """What of the job lies on this machine, and not in S3. No request over the API can say so."""

    @classmethod
    def parse(cls, request: Mapping[str, Any]) -> TrainingRequest:
        """Check and read a request.

        Raises:
            ApiError: ValidationException, if AWS or the local platform would not take it.
        """
        members = copy.deepcopy(check_request("CreateTrainingJob", request))
        _refuse(broken_rules(members))
        algorithm, groups = _algorithm(members), _groups(members)
        output, condition = members["OutputDataConfig"], members.get("StoppingCondition", {})
        return cls(
            name=members["TrainingJobName"],
            image=algorithm["TrainingImage"],
            members=members,
            groups=groups,
            channels=tuple(_channels(members, algorithm["TrainingInputMode"])),
            checkpoints=_checkpoints(members),
            output=_uri(output["S3OutputPath"], "OutputDataConfig.S3OutputPath").below(
                f"{members['TrainingJobName']}/output"
            ),
            compressed=output.get("CompressionType", "GZIP") == "GZIP",
            spot=members.get("EnableManagedSpotTraining", False),
            network_isolation=members.get("EnableNetworkIsolation", False),
            max_runtime=condition.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME),
            max_wait=condition.get("MaxWaitTimeInSeconds"),
            entrypoint=tuple(algorithm.get("ContainerEntrypoint", ())),
            arguments=tuple(algorithm.get("ContainerArguments", ())),
            metrics=tuple(
                _valid(MetricDefinition.parse, metric["Name"], metric["Regex"])
                for metric in algorithm.get("MetricDefinitions", ())
            ),
            environment=members.get("Environment", {}),
            hyperparameters=members.get("HyperParameters", {}),
            tags=read_tags(members.get("Tags", ())),
        )


def read_tags(tags: list[dict[str, str]] | tuple[()]) -> dict[str, str]:
    """Return a request's tags by their keys.

    Raises:
        ApiError: ValidationException, for a key that comes twice or is AWS's own.
    """
    _refuse(broken_by_tags(tags))
    return {tag["Key"]: tag["Value"] for tag in tags}


def _algorithm(members: Mapping[str, Any]) -> Mapping[str, Any]:
    if "ServerlessJobConfig" in members:
        raise invalid("ServerlessJobConfig is not offered by the local platform; give AlgorithmSpecification.")
    algorithm: Mapping[str, Any] = members["AlgorithmSpecification"]
    if "AlgorithmName" in algorithm:
        raise invalid("AlgorithmSpecification.AlgorithmName is not offered by the local platform; use TrainingImage.")
    return algorithm


def _groups(members: Mapping[str, Any]) -> tuple[InstanceGroup, ...]:
    resources = members["ResourceConfig"]
    if "InstancePreferences" in resources:
        raise invalid("ResourceConfig.InstancePreferences is not offered by the local platform; give InstanceType.")
    groups = tuple(
        InstanceGroup(
            name=group["InstanceGroupName"], instance_type=group["InstanceType"], count=group["InstanceCount"]
        )
        for group in resources.get("InstanceGroups") or [{"InstanceGroupName": HOMOGENEOUS, **resources}]
    )
    if (total := sum(group.count for group in groups)) > MAX_HOSTS:
        raise ApiError(
            "ResourceLimitExceeded", f"The job asks for {total} instances; the local platform runs {MAX_HOSTS} at most."
        )
    return groups


def _channels(members: Mapping[str, Any], default_mode: str) -> Iterator[Channel]:
    channels = members.get("InputDataConfig", ())
    _refuse_names_of_pipes({channel["ChannelName"]: channel.get("InputMode", default_mode) for channel in channels})
    for channel in channels:
        name, mode = channel["ChannelName"], channel.get("InputMode", default_mode)
        if name in (".", ".."):
            raise invalid(f"InputDataConfig: {name!r} can't be a channel's name: it is no name of a directory.")
        source = channel["DataSource"].get("S3DataSource")
        if source is None:
            raise invalid(f"Channel {name}: DataSource must be an S3DataSource on the local platform.")
        kind, distribution = source["S3DataType"], source.get("S3DataDistributionType", "FullyReplicated")
        if kind not in ("S3Prefix", "ManifestFile"):
            raise invalid(f"Channel {name}: S3DataType {kind} is not offered by the local platform; use S3Prefix.")
        recordio, gzip = channel.get("RecordWrapperType") == "RecordIO", channel.get("CompressionType") == "Gzip"
        if recordio and gzip:
            raise invalid(f"Channel {name}: RecordIO records of Gzip objects are not offered by the local platform.")
        content_type = {"ContentType": channel["ContentType"]} if "ContentType" in channel else {}
        yield Channel(
            name=name,
            mode=mode,
            uri=_uri(source["S3Uri"], f"Channel {name}: S3Uri"),
            manifest=kind == "ManifestFile",
            sharded=distribution == "ShardedByS3Key",
            groups=tuple(source.get("InstanceGroupNames", ())),
            seed=channel.get("ShuffleConfig", {}).get("Seed"),
            recordio=recordio,
            gzip=gzip,
            config={
                **content_type,
                "TrainingInputMode": "File" if mode == "FastFile" else mode,  # on AWS too: to a program it is File
                "S3DistributionType": distribution,
                "RecordWrapperType": channel.get("RecordWrapperType", "None"),
            },
        )


def _refuse_names_of_pipes(modes: Mapping[str, str]) -> None:
    for name in modes:
        pipe, _, epoch = name.rpartition("_")
        if modes.get(pipe) == "Pipe" and epoch.isdecimal():
            raise invalid(f"Channel {name}: Pipe mode gives this name to a pipe of the channel {pipe}; rename one.")


def _checkpoints(members: Mapping[str, Any]) -> Checkpoints | None:
    config = members.get("CheckpointConfig")
    if config is None:
        return None
    path = PurePosixPath(config.get("LocalPath", DEFAULT_CHECKPOINT_PATH))
    below = path.relative_to(ML_ROOT) if path.is_relative_to(ML_ROOT) else PurePosixPath()
    if not below.parts or ".." in below.parts or below.parts[0] == "input":
        raise invalid(
            f"CheckpointConfig.LocalPath is {path}; on the local platform it must be a directory below {ML_ROOT} and "
            f"not below {ML_ROOT}/input, such as {DEFAULT_CHECKPOINT_PATH}."
        )
    return Checkpoints(uri=_uri(config["S3Uri"], "CheckpointConfig.S3Uri"), path=below)


def _uri(text: str, member: str) -> S3Uri:
    try:
        return S3Uri.parse(text)
    except ValueError as error:
        raise invalid(f"{member}: {error}.") from None


def _valid(parse: Callable[..., _T], *arguments: str) -> _T:
    try:
        return parse(*arguments)
    except ValueError as error:
        raise invalid(f"AlgorithmSpecification.MetricDefinitions: {error}.") from None


def _refuse(broken: Iterable[BrokenRule]) -> None:
    if said := " ".join(map(str, broken)):
        raise invalid(said)
