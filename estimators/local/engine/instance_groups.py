"""The instance groups of a job, and the hosts in them, numbered over all groups."""

from __future__ import annotations

from dataclasses import dataclass

HOMOGENEOUS = "homogeneousCluster"
"""The name of the only group of a job without instance groups."""
MAX_HOSTS = 254
"""The number of addresses in a job's network."""


@dataclass(kw_only=True, slots=True, frozen=True)
class InstanceGroup:
    """Instances of one type."""

    name: str
    instance_type: str
    count: int


@dataclass(kw_only=True, slots=True, frozen=True)
class Host:
    """One instance of a job."""

    name: str
    """``algo-1``, ``algo-2``, …, counted over all groups."""
    group: str
    instance_type: str


def name_hosts(groups: tuple[InstanceGroup, ...]) -> tuple[Host, ...]:
    """Return the instances of all groups."""
    instances = [group for group in groups for _ in range(group.count)]
    return tuple(
        Host(name=f"algo-{number}", group=group.name, instance_type=group.instance_type)
        for number, group in enumerate(instances, start=1)
    )
