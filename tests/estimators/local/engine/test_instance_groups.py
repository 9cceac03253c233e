"""The hosts of a job's instance groups."""

from __future__ import annotations

from estimators.local.engine.instance_groups import InstanceGroup, name_hosts

GROUPS = (
    InstanceGroup(name="gpu", instance_type="ml.g5.xlarge", count=2),
    InstanceGroup(name="cpu", instance_type="ml.m5.large", count=1),
)


def test_hosts_are_counted_over_all_groups() -> None:
    hosts = name_hosts(GROUPS)
    assert [(host.name, host.group, host.instance_type) for host in hosts] == [
        ("algo-1", "gpu", "ml.g5.xlarge"),
        ("algo-2", "gpu", "ml.g5.xlarge"),
        ("algo-3", "cpu", "ml.m5.large"),
    ]
