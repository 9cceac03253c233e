"""AWS's rules between the members of a CreateTrainingJob that the API's model does not state.

They apply to requests that `service_model` allows. The plan checks the request it is about to send, the local platform
the one it received. Features that only the local platform lacks are refused by its own parser.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from estimators.service_model import dotted, service_model

Request = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """One reason for which AWS would refuse a request."""

    path: tuple[str | int, ...]
    """The path in the request: members, and indices of lists."""
    found: str
    """What the request contains."""
    remedy: str
    """What is allowed instead, and what to do."""

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.found}. {self.remedy}"


def twice_named(path: tuple[str, ...], names: Sequence[str]) -> Iterator[BrokenRule]:
    """Yield the names that occur more than once in a list whose names must be unique."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        yield BrokenRule(path=path, found=f"{', '.join(twice)} comes more than once", remedy="Each must be unique.")


PROFILING_INTERVALS = (100, 200, 500, 1000, 5000, 60000)
"""Milliseconds. https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ProfilerConfig.html"""


def broken_rules(request: Request) -> Iterator[BrokenRule]:
    """Yield each rule that a CreateTrainingJob breaks, once the API's model allows it."""
    yield from broken_rules_of_part(request, ())[0]


def broken_rules_of_part(request: Request, absent: Collection[str]) -> tuple[list[BrokenRule], list[str]]:
    """Return the rules that a part of a request breaks, and the `absent` members that a rule reads.

    A rule that reads an absent member is not judged: with the member, the request might keep it.
    """
    broken: list[BrokenRule] = []
    unjudged: set[str] = set()
    for rule in _RULES:
        part = _Part(request)
        found = list(rule(part))
        if hidden := part.read.intersection(absent):
            unjudged |= hidden
        else:
            broken += found
    return broken, sorted(unjudged)


@dataclass(frozen=True, slots=True)
class _Part(Mapping[str, Any]):
    """A request that notes which of its members a rule reads, also of those that are absent."""

    request: Request
    read: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self.request[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.request)

    def __len__(self) -> int:
        return len(self.request)


def broken_by_tags(tags: Sequence[Mapping[str, str]]) -> Iterator[BrokenRule]:
    """Yield each rule that a request's tags break."""
    yield from twice_named(("Tags",), [tag["Key"] for tag in tags])
    for number, tag in enumerate(tags):
        if tag["Key"].lower().startswith("aws:"):
            found = f"the key {tag['Key']!r} begins with 'aws:', which is reserved for AWS"
            yield BrokenRule(path=("Tags", number), found=found, remedy="Rename it.")


def _tags(request: Request) -> Iterator[BrokenRule]:
    yield from broken_by_tags(request.get("Tags", ()))


def _names(request: Request) -> Iterator[BrokenRule]:
    for path, name in (
        (("InputDataConfig",), "ChannelName"),
        (("ResourceConfig", "InstanceGroups"), "InstanceGroupName"),
        (("DebugHookConfig", "CollectionConfigurations"), "CollectionName"),
        (("DebugRuleConfigurations",), "RuleConfigurationName"),
        (("ProfilerRuleConfigurations",), "RuleConfigurationName"),
    ):
        *above, last = path
        members = request
        for member in above:
            members = members.get(member, {})
        yield from twice_named(path, [item[name] for item in members.get(last, ()) if name in item])
    kinds = ("DebugRuleConfigurations", "ProfilerRuleConfigurations")
    debugger, profiler = ({rule.get("RuleConfigurationName") for rule in request.get(kind, ())} for kind in kinds)
    if both := sorted(name for name in debugger & profiler if name):
        found = f"{', '.join(both)} names a Debugger rule, too"
        yield BrokenRule(path=(kinds[1],), found=found, remedy="Each must be unique among all rules.")


def _algorithm(request: Request) -> Iterator[BrokenRule]:
    path, algorithm = ("AlgorithmSpecification",), request.get("AlgorithmSpecification")
    if algorithm is None:
        if "ServerlessJobConfig" not in request:
            yield BrokenRule(path=path, found="it is missing", remedy="Give it a TrainingImage and TrainingInputMode.")
        return
    if ("TrainingImage" in algorithm) == ("AlgorithmName" in algorithm):
        both = "TrainingImage" in algorithm
        found = f"it has {'both TrainingImage and' if both else 'neither TrainingImage nor'} AlgorithmName"
        yield BrokenRule(path=path, found=found, remedy="Give one of the two.")
    access = algorithm.get("TrainingImageConfig", {}).get("TrainingRepositoryAccessMode")
    if access == "Vpc" and "VpcConfig" not in request:
        yield BrokenRule(
            path=(*path, "TrainingImageConfig", "TrainingRepositoryAccessMode"),
            found="it is Vpc, and the job is in no VPC",
            remedy="Give the VPC's subnets and security groups.",
        )


def _places(request: Request) -> Iterator[BrokenRule]:
    """Yield each S3Uri of the request that does not begin with ``s3://``.

    The model's pattern for S3Uri allows https, too, for model packages. For the data of a training job the whole
    reference uses ``s3://`` (https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html,
    API_OutputDataConfig.html, API_DebugHookConfig.html).
    """
    shape = service_model().operation_model("CreateTrainingJob").input_shape
    for path, uri in _uris(shape, request, ()):
        if not uri.startswith("s3://"):
            remedy = "Give s3://bucket/prefix."
            if path[0] == "InputDataConfig" and "://" not in uri:
                remedy = f"Upload it, and give the URI: aws s3 cp --recursive {uri} s3://bucket/prefix"
            yield BrokenRule(path=path, found=f"{uri!r} is not an S3 URI", remedy=remedy)


def _uris(shape: Any, value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the path and value of each S3Uri in the model's sense."""
    if shape.name == "S3Uri":
        yield path, value
    elif shape.type_name == "structure":
        for name, item in value.items():
            yield from _uris(shape.members[name], item, (*path, name))
    elif shape.type_name == "list":
        for number, item in enumerate(value):
            yield from _uris(shape.member, item, (*path, number))


def _profiler(request: Request) -> Iterator[BrokenRule]:
    member = "ProfilingIntervalInMilliseconds"
    interval = request.get("ProfilerConfig", {}).get(member)
    if interval is not None and interval not in PROFILING_INTERVALS:
        remedy = f"Give one of {', '.join(map(str, PROFILING_INTERVALS))}."
        yield BrokenRule(path=("ProfilerConfig", member), found=f"the interval is {interval} ms", remedy=remedy)


DEFAULT_MAX_RUNTIME = 24 * 60 * 60
LONGEST_RUNTIME = 28 * 24 * 60 * 60
"""Seconds. https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html"""


def _times(request: Request) -> Iterator[BrokenRule]:
    """Yield the rules that a request's StoppingCondition breaks."""
    condition, spot = request.get("StoppingCondition", {}), request.get("EnableManagedSpotTraining", False)
    max_runtime = condition.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME)
    max_wait = condition.get("MaxWaitTimeInSeconds")
    if max_runtime > LONGEST_RUNTIME:
        yield BrokenRule(
            path=("StoppingCondition", "MaxRuntimeInSeconds"),
            found=f"Invalid MaxRuntimeInSeconds {max_runtime}",
            remedy=f"It must be at most {LONGEST_RUNTIME} (28 days).",
        )
    path = ("StoppingCondition", "MaxWaitTimeInSeconds")
    if spot and (max_wait is None or max_wait < max_runtime):
        remedy = "It must be present and be greater than or equal to MaxRuntimeInSeconds"
        yield BrokenRule(
            path=path,
            found=f"Invalid MaxWaitTimeInSeconds {max_wait}",
            remedy=f"{remedy} ({max_runtime}) when EnableManagedSpotTraining is true.",
        )
    if not spot and max_wait is not None:
        remedy = "Set EnableManagedSpotTraining, or leave it out."
        yield BrokenRule(path=path, found="it is only for managed spot training", remedy=remedy)


_Faults = Iterator[tuple[str, str]]
"""What was found, and the remedy."""


def _channels(request: Request) -> Iterator[BrokenRule]:
    """Yield the rules that a request's channels break."""
    default_mode = request.get("AlgorithmSpecification", {}).get("TrainingInputMode")
    groups = {group.get("InstanceGroupName") for group in request.get("ResourceConfig", {}).get("InstanceGroups", ())}
    for number, channel in enumerate(request.get("InputDataConfig", ())):
        sources, mode = channel.get("DataSource", {}), channel.get("InputMode", default_mode)
        faults = [
            *_source_faults(sources, in_vpc="VpcConfig" in request),
            *_mode_faults(channel, sources.get("S3DataSource", {}), mode),
            *_group_faults(sources.get("S3DataSource", {}), groups),
        ]
        for found, remedy in faults:
            named = f"the channel {channel['ChannelName']} {found}"
            yield BrokenRule(path=("InputDataConfig", number), found=named, remedy=remedy)
    yield from _all_or_none(request.get("InputDataConfig", ()))


def _all_or_none(channels: Sequence[Mapping[str, Any]]) -> Iterator[BrokenRule]:
    """Yield that only some channels name instance groups, in SageMaker's own words."""
    assigned: list[str] = []
    others: list[str] = []
    for channel in channels:
        has_groups = channel.get("DataSource", {}).get("S3DataSource", {}).get("InstanceGroupNames")
        (assigned if has_groups else others).append(channel["ChannelName"])
    if assigned and others:
        listed = f"[{', '.join(assigned)}] while others not: [{', '.join(others)}]"
        yield BrokenRule(
            path=("InputDataConfig",),
            found=f"Some channels have assigned instance groups: {listed}",
            remedy="Name groups for every channel, which can't be done for those that the SDK adds, or for none.",
        )


def _source_faults(sources: Mapping[str, Any], *, in_vpc: bool) -> _Faults:
    if len(sources) != 1:
        yield f"has {' and '.join(sorted(sources)) or 'nothing'} for a DataSource", "It must have exactly one."
    if "FileSystemDataSource" in sources and not in_vpc:
        yield "is in a file system, and the job is in no VPC", "Give the VPC's subnets and security groups."


def _mode_faults(channel: Mapping[str, Any], source: Mapping[str, Any], mode: str) -> _Faults:
    kind, names = source.get("S3DataType"), source.get("AttributeNames")
    if kind == "AugmentedManifestFile":
        if mode != "Pipe":
            yield f"is an AugmentedManifestFile in {mode} mode", "AugmentedManifestFile can only be used in Pipe mode."
        if not names:
            yield "is an AugmentedManifestFile without AttributeNames", "Name the attributes to send."
    else:
        if names:
            yield f"has AttributeNames, and its S3DataType is {kind}", "They are only for AugmentedManifestFile."
        if mode == "FastFile" and kind not in (None, "S3Prefix"):
            yield f"is a {kind}", "FastFile mode must use a S3DataType of S3Prefix."
    for member, unset in (("RecordWrapperType", "None"), ("CompressionType", "None")):
        if (value := channel.get(member, unset)) != unset and mode != "Pipe":
            yield f"has {member} {value} in {mode} mode", f"{value} is only for Pipe mode: leave it out."


def _group_faults(source: Mapping[str, Any], groups: set[str]) -> _Faults:
    if unknown := sorted(set(source.get("InstanceGroupNames", ())) - groups):
        known = f"are {', '.join(sorted(groups))}" if groups else "have no names: leave InstanceGroupNames out"
        yield f"is for the instance groups {', '.join(unknown)}", f"The job's instance groups {known}."


FAMILIES_WITH_LOCAL_STORAGE = frozenset(
    {
        "g4dn",
        "g5",
        "g6",
        "g6e",
        "g7",
        "g7e",
        "p3dn",
        "p4d",
        "p4de",
        "p5",
        "p5e",
        "p5en",
        "p6-b200",
        "p6-b300",
        "p6e-gb200",
        "r5d",
        "trn1",
        "trn1n",
        "trn2",
    }
)
"""Families whose volume is the instance's own NVMe disk, which no key of the user's can encrypt.

They are the training instance types with InstanceStorageSupported in EC2's DescribeInstanceTypes. The rule is in
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html
"""


def _instances(request: Request) -> Iterator[BrokenRule]:
    """Yield the rules that a request's ResourceConfig breaks."""
    path, resources = ("ResourceConfig",), request.get("ResourceConfig", {})
    if not resources and "ServerlessJobConfig" in request:
        return
    groups, count = resources.get("InstanceGroups", ()), resources.get("InstanceCount")
    ways = [way for way in ("InstanceType", "InstanceGroups", "InstancePreferences") if resources.get(way)]
    if len(ways) != 1 or (groups and count is not None):
        yield BrokenRule(
            path=path,
            found=f"it has {', '.join(sorted(resources)) or 'nothing'}",
            remedy="It must have either InstanceType with InstanceCount, or InstanceGroups, or InstancePreferences.",
        )
    if "InstancePreferences" in resources:
        yield from _preferences(request, resources["InstancePreferences"])
    if written := sorted({"SelectedInstanceType", "SelectedInstanceCount"} & set(resources)):
        found = f"it has {' and '.join(written)}, which the service alone writes"
        yield BrokenRule(path=path, found=found, remedy="Leave it out.")
    if len(ways) == 1 and "InstanceType" in resources and not count:
        yield BrokenRule(path=path, found=f"InstanceCount is {count}", remedy="InstanceCount must be at least 1.")
    for number, group in enumerate(groups):
        if not group.get("InstanceCount"):
            found = f"InstanceCount of the group {group.get('InstanceGroupName')} is {group.get('InstanceCount')}"
            place = (*path, "InstanceGroups", number)
            yield BrokenRule(path=place, found=found, remedy="InstanceCount must be at least 1.")
    if resources.get("KeepAlivePeriodInSeconds"):
        yield from _warm_pool(request, bool(groups))
    types = [item.get("InstanceType", "") for item in (resources, *groups, *resources.get("InstancePreferences", ()))]
    local = sorted({name for name in types if _family(name) in FAMILIES_WITH_LOCAL_STORAGE})
    if resources.get("VolumeKmsKeyId") and local:
        yield BrokenRule(
            path=(*path, "VolumeKmsKeyId"),
            found=f"the volume of {', '.join(local)} is local NVMe storage, which its hardware encrypts",
            remedy="Leave the key out, or use an instance type without local storage.",
        )


def _family(instance_type: str) -> str:
    """Return ``g5`` of ``ml.g5.xlarge``."""
    return instance_type.removeprefix("ml.").partition(".")[0]


def _preferences(request: Request, preferences: Sequence[Mapping[str, Any]]) -> Iterator[BrokenRule]:
    """Yield the rules that InstancePreferences break, such as members that they exclude.

    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html
    """
    path, resources = ("ResourceConfig", "InstancePreferences"), request["ResourceConfig"]
    clash = {
        "EnableManagedSpotTraining": request.get("EnableManagedSpotTraining"),
        "InstancePlacementConfig": resources.get("InstancePlacementConfig"),
        "TrainingPlanArn beside TrainingPlanArns": "TrainingPlanArn" in resources
        and any(each.get("TrainingPlanArns") for each in preferences),
    }
    for other in (name for name, given in clash.items() if given):
        yield BrokenRule(path=path, found=f"it is mutually exclusive with {other}", remedy="Give one of the two.")
    yield from twice_named(path, [each["InstanceType"] for each in preferences if "InstanceType" in each])
    for number, each in enumerate(preferences):
        if not each.get("InstanceCount", 1):
            found = f"InstanceCount is {each['InstanceCount']}"
            yield BrokenRule(path=(*path, number), found=found, remedy="InstanceCount must be at least 1.")
    counted = sum("InstanceCount" in each for each in preferences)
    if counted != (0 if "InstanceCount" in resources else len(preferences)):
        yield BrokenRule(
            path=path,
            found=f"InstanceCount is in {counted} of {len(preferences)} preferences, and "
            f"{'also' if 'InstanceCount' in resources else 'not'} in ResourceConfig",
            remedy="Give it in every preference, or in ResourceConfig alone.",
        )


def _warm_pool(request: Request, has_groups: bool) -> Iterator[BrokenRule]:
    clash = {"spot instances": request.get("EnableManagedSpotTraining"), "instance groups": has_groups}
    for kept in (name for name, given in clash.items() if given):
        yield BrokenRule(
            path=("ResourceConfig", "KeepAlivePeriodInSeconds"),
            found=f"{kept} can't be kept in a warm pool",
            remedy=f"Leave it out, or use no {kept}.",
        )


_RULES: tuple[Callable[[Request], Iterator[BrokenRule]], ...] = (
    _algorithm,
    _instances,
    _times,
    _names,
    _channels,
    _places,
    _profiler,
    _tags,
)
