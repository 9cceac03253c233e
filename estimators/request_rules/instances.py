"""Rules on the instances of a job, and on members that exclude each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from estimators.request_rules.broken_rule import BrokenRule, Request, twice_named

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


def check(request: Request) -> Iterator[BrokenRule]:
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
