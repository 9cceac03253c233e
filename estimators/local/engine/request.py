"""A CreateTrainingJob request, read once into a frozen value and held to the rules between its members.

The form of single members is `validation`'s. Rules that are AWS's are in AWS's words where they are known; what the
local platform does not do is refused here, so that no job trains with a part of its request ignored.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, TypeVar

from estimators.local.engine.errors import ApiError, invalid
from estimators.local.engine.hosts import HOMOGENEOUS, MAX_HOSTS, InstanceGroup
from estimators.local.engine.local_files import LocalFiles
from estimators.local.engine.metrics import MetricDefinition
from estimators.local.engine.objects import FileUri, S3Uri
from estimators.local.engine.validation import check_request

ML_ROOT = PurePosixPath("/opt/ml")
DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints"
DEFAULT_MAX_RUNTIME = 24 * 60 * 60
LONGEST_RUNTIME = 28 * 24 * 60 * 60

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
        _refuse_rules_that_share_a_name(members)
        algorithm, groups = _algorithm(members), _groups(members)
        max_runtime, max_wait = _times(members)
        output = members["OutputDataConfig"]
        return cls(
            name=members["TrainingJobName"],
            image=algorithm["TrainingImage"],
            members=members,
            groups=groups,
            channels=tuple(_channels(members, algorithm["TrainingInputMode"], {group.name for group in groups})),
            checkpoints=_checkpoints(members),
            output=_uri(output["S3OutputPath"], "OutputDataConfig.S3OutputPath").below(
                f"{members['TrainingJobName']}/output"
            ),
            compressed=output.get("CompressionType", "GZIP") == "GZIP",
            spot=members.get("EnableManagedSpotTraining", False),
            network_isolation=members.get("EnableNetworkIsolation", False),
            max_runtime=max_runtime,
            max_wait=max_wait,
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
    _refuse_twice((tag["Key"] for tag in tags), "Tags")
    for tag in tags:
        if tag["Key"].lower().startswith("aws:"):
            raise invalid(f"Tags: the key {tag['Key']!r} begins with 'aws:', which is reserved for AWS; rename it.")
    return {tag["Key"]: tag["Value"] for tag in tags}


def _algorithm(members: Mapping[str, Any]) -> Mapping[str, Any]:
    if "ServerlessJobConfig" in members:
        raise invalid("ServerlessJobConfig is not offered by the local platform; give AlgorithmSpecification.")
    algorithm: Mapping[str, Any] | None = members.get("AlgorithmSpecification")
    if algorithm is None:
        raise invalid("AlgorithmSpecification is missing; give it a TrainingImage and a TrainingInputMode.")
    if "AlgorithmName" in algorithm:
        raise invalid("AlgorithmSpecification.AlgorithmName is not offered by the local platform; use TrainingImage.")
    if "TrainingImage" not in algorithm:
        raise invalid("AlgorithmSpecification.TrainingImage is missing; any image's URI will do on the local platform.")
    return algorithm


def _groups(members: Mapping[str, Any]) -> tuple[InstanceGroup, ...]:
    resources = members.get("ResourceConfig", {})
    listed, kind, count = (resources.get(key) for key in ("InstanceGroups", "InstanceType", "InstanceCount"))
    if "InstancePreferences" in resources:
        raise invalid("ResourceConfig.InstancePreferences is not offered by the local platform; give InstanceType.")
    if bool(listed) == bool(kind) or (listed and count is not None):
        raise invalid("ResourceConfig must have either InstanceType with InstanceCount, or InstanceGroups.")
    if listed:
        _refuse_twice((group["InstanceGroupName"] for group in listed), "ResourceConfig.InstanceGroups")
    groups = tuple(
        InstanceGroup(
            name=group["InstanceGroupName"], instance_type=group["InstanceType"], count=group["InstanceCount"]
        )
        for group in listed or [{"InstanceGroupName": HOMOGENEOUS, "InstanceType": kind, "InstanceCount": count or 0}]
    )
    if min(group.count for group in groups) < 1:
        raise invalid("ResourceConfig: InstanceCount must be at least 1.")
    if (total := sum(group.count for group in groups)) > MAX_HOSTS:
        raise ApiError(
            "ResourceLimitExceeded", f"The job asks for {total} instances; the local platform runs {MAX_HOSTS} at most."
        )
    if "KeepAlivePeriodInSeconds" in resources and (listed or members.get("EnableManagedSpotTraining")):
        raise invalid("KeepAlivePeriodInSeconds (warm pools) goes neither with managed spot nor with InstanceGroups.")
    return groups


def _times(members: Mapping[str, Any]) -> tuple[int, int | None]:
    condition, spot = members.get("StoppingCondition", {}), members.get("EnableManagedSpotTraining", False)
    max_runtime: int = condition.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME)
    max_wait: int | None = condition.get("MaxWaitTimeInSeconds")
    if max_runtime > LONGEST_RUNTIME:
        raise invalid(f"Invalid MaxRuntimeInSeconds {max_runtime}. It must be at most {LONGEST_RUNTIME} (28 days).")
    if spot and (max_wait is None or max_wait < max_runtime):
        raise invalid(
            f"Invalid MaxWaitTimeInSeconds {max_wait}. It must be present and be greater than or equal to "
            f"MaxRuntimeInSeconds ({max_runtime}) when EnableManagedSpotTraining is true."
        )
    if not spot and max_wait is not None:
        raise invalid(
            "MaxWaitTimeInSeconds is only for managed spot training; set EnableManagedSpotTraining, or leave it out."
        )
    return max_runtime, max_wait


def _channels(members: Mapping[str, Any], default_mode: str, groups: set[str]) -> Iterator[Channel]:
    channels = members.get("InputDataConfig", ())
    _refuse_twice((channel["ChannelName"] for channel in channels), "InputDataConfig")
    _refuse_names_of_pipes({channel["ChannelName"]: channel.get("InputMode", default_mode) for channel in channels})
    for channel in channels:
        name, mode = channel["ChannelName"], channel.get("InputMode", default_mode)
        if name in (".", ".."):
            raise invalid(f"InputDataConfig: {name!r} can't be a channel's name: it is no name of a directory.")
        sources = channel["DataSource"]
        if len(sources) > 1:
            raise invalid(f"Channel {name}: DataSource has {' and '.join(sorted(sources))}; it must have exactly one.")
        source = sources.get("S3DataSource")
        if source is None:
            raise invalid(f"Channel {name}: DataSource must be an S3DataSource on the local platform.")
        kind, distribution = source["S3DataType"], source.get("S3DataDistributionType", "FullyReplicated")
        if kind not in ("S3Prefix", "ManifestFile"):
            raise invalid(f"Channel {name}: S3DataType {kind} is not offered by the local platform; use S3Prefix.")
        if "AttributeNames" in source:
            raise invalid(
                f"Channel {name}: AttributeNames is only for the S3DataType AugmentedManifestFile, not {kind}."
            )
        if mode == "FastFile" and kind != "S3Prefix":
            raise invalid(f"Channel {name}: FastFile mode must use a S3DataType of S3Prefix, not {kind}.")
        recordio, gzip = channel.get("RecordWrapperType") == "RecordIO", channel.get("CompressionType") == "Gzip"
        if mode != "Pipe" and (recordio or gzip):
            member = "RecordWrapperType RecordIO" if recordio else "CompressionType Gzip"
            raise invalid(f"Channel {name}: {member} is only for Pipe mode, not {mode}; leave it out.")
        if recordio and gzip:
            raise invalid(f"Channel {name}: RecordIO records of Gzip objects are not offered by the local platform.")
        wanted = tuple(source.get("InstanceGroupNames", ()))
        if unknown := set(wanted) - groups:
            raise invalid(
                f"Channel {name}: InstanceGroupNames has {', '.join(sorted(unknown))}; the job's groups are "
                f"{', '.join(sorted(groups))}."
            )
        content_type = {"ContentType": channel["ContentType"]} if "ContentType" in channel else {}
        yield Channel(
            name=name,
            mode=mode,
            uri=_uri(source["S3Uri"], f"Channel {name}: S3Uri"),
            manifest=kind == "ManifestFile",
            sharded=distribution == "ShardedByS3Key",
            groups=wanted,
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


def _refuse_rules_that_share_a_name(members: Mapping[str, Any]) -> None:
    for member in ("DebugRuleConfigurations", "ProfilerRuleConfigurations"):
        _refuse_twice((rule["RuleConfigurationName"] for rule in members.get(member, ())), member)


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


def _refuse_twice(names: Iterator[str], member: str) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise invalid(f"{member}: {', '.join(twice)} comes more than once; each must be unique.")
