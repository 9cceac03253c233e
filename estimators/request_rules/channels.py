"""Rules between a channel's source, its mode, its instance groups and the job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from estimators.request_rules.broken_rule import BrokenRule, Request

_Faults = Iterator[tuple[str, str]]
"""What was found, and the remedy."""


def check(request: Request) -> Iterator[BrokenRule]:
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
