"""Addresses and ports of hosts that are processes."""

from __future__ import annotations

import socket
from unittest.mock import MagicMock

import pytest

from estimators.local.executors import loopback
from estimators.local.executors.loopback import free_port_on_all_addresses, give_addresses

HOSTS = ("algo-1", "algo-2", "algo-3")


def test_each_host_has_an_address_that_can_be_bound() -> None:
    addresses = give_addresses(HOSTS)
    assert tuple(addresses) == HOSTS
    assert len(set(addresses.values())) == 3
    for address in addresses.values():
        assert not address.startswith("127.0.")
        with socket.socket() as listener:
            listener.bind((address, 0))


def test_jobs_have_networks_of_their_own() -> None:
    networks = {give_addresses(HOSTS)["algo-1"].rpartition(".")[0] for _ in range(20)}
    assert len(networks) >= 19


def test_jobs_have_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = MagicMock()
    probe.__enter__.return_value.getsockname.side_effect = [("", port) for port in (40001, 40001, 40002)]
    monkeypatch.setattr(loopback.socket, "socket", lambda: probe)
    assert [free_port_on_all_addresses() for _ in range(2)] == [40001, 40002]


def test_a_free_port_is_free() -> None:
    with socket.socket() as listener:
        listener.bind(("", free_port_on_all_addresses()))
