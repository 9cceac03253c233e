"""The hosts of a job: their names, groups and addresses.

Every job gets a network of its own in 127.0.0.0/8, so that hosts of different jobs do not meet on one address.
"""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass

HOMOGENEOUS = "homogeneousCluster"
"""The name that the platform gives to the only group of a job without instance groups."""
MAX_HOSTS = 254
"""As many addresses as a job's network has."""


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
    address: str
    group: str
    instance_type: str


def allocate_hosts(groups: tuple[InstanceGroup, ...]) -> tuple[Host, ...]:
    """Name the instances of all groups, with addresses in a network drawn by chance from 127.1.0.0 to 127.255.255.0."""
    network = f"127.{random.randint(1, 255)}.{random.randint(0, 255)}"  # noqa: S311  # not a secret
    instances = [group for group in groups for _ in range(group.count)]
    return tuple(
        Host(name=f"algo-{number}", address=f"{network}.{number}", group=group.name, instance_type=group.instance_type)
        for number, group in enumerate(instances, start=1)
    )


def free_port() -> int:
    """A TCP port that is free on every address of the machine at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
