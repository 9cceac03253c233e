"""All rules on a request, and those that concern no single part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from estimators.request_rules import channels, instances, times
from estimators.request_rules.broken_rule import BrokenRule, Request, twice_named
from estimators.service_model import service_model

PROFILING_INTERVALS = (100, 200, 500, 1000, 5000, 60000)
"""Milliseconds. https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ProfilerConfig.html"""


def broken_rules(request: Request) -> Iterator[BrokenRule]:
    """Yield each rule that a CreateTrainingJob breaks, once the API's model allows it."""
    for rule in _RULES:
        yield from rule(request)


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
            yield BrokenRule(path=path, found=f"{uri!r} is no place on S3", remedy="Give s3://bucket/prefix.")


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


_RULES: tuple[Callable[[Request], Iterator[BrokenRule]], ...] = (
    _algorithm,
    instances.check,
    times.check,
    _names,
    channels.check,
    _places,
    _profiler,
    _tags,
)
