"""Names and addresses of a job's hosts."""

from __future__ import annotations

import socket

from estimators.local.engine.hosts import InstanceGroup, allocate_hosts, free_port

GROUPS = (
    InstanceGroup(name="gpu", instance_type="ml.g5.xlarge", count=2),
    InstanceGroup(name="cpu", instance_type="ml.m5.large", count=1),
)


def test_hosts_are_counted_over_all_groups() -> None:
    hosts = allocate_hosts(GROUPS)
    assert [(host.name, host.group, host.instance_type) for host in hosts] == [
        ("algo-1", "gpu", "ml.g5.xlarge"),
        ("algo-2", "gpu", "ml.g5.xlarge"),
        ("algo-3", "cpu", "ml.m5.large"),
    ]


def test_each_host_has_an_address_that_can_be_bound() -> None:
    hosts = allocate_hosts(GROUPS)
    assert len({host.address for host in hosts}) == 3
    for host in hosts:
        assert not host.address.startswith("127.0.")
        with socket.socket() as listener:
            listener.bind((host.address, 0))


def test_jobs_have_networks_of_their_own() -> None:
    networks = {allocate_hosts(GROUPS)[0].address.rpartition(".")[0] for _ in range(20)}
    assert len(networks) >= 19


def test_a_free_port_is_free() -> None:
    with socket.socket() as listener:
        listener.bind(("", free_port()))
