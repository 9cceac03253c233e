from __future__ import annotations

import socket
import time

import pytest

from smddp.container import hosts
from smddp.container.hosts import await_names
from smddp.errors import ClusterError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(hosts, "RETRY_SECONDS", 0.02)


def test_returns_once_the_last_name_resolves(monkeypatch):
    tries = {"algo-1": 0, "algo-2": 0}

    def resolve(host, port):
        tries[host] += 1
        if host == "algo-2" and tries[host] < 4:
            raise socket.gaierror("not yet")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    await_names(["algo-1", "algo-2"], seconds=10)
    assert tries == {"algo-1": 1, "algo-2": 4}


def test_gives_up_after_the_bound_and_names_the_hosts(monkeypatch):
    def resolve(host, port):
        if host != "algo-1":
            raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ClusterError, match="The names of algo-2, algo-3 did not resolve"):
        await_names(["algo-1", "algo-2", "algo-3"], seconds=0.1)


def test_the_bound_holds_while_the_resolver_itself_hangs(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: time.sleep(5))
    start = time.monotonic()
    with pytest.raises(ClusterError):
        await_names(["algo-1"], seconds=0.1)
    assert time.monotonic() - start < 2
