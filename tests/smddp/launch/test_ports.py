"""A free port is free wherever a store listens; a held one is given to nobody, and a store can listen on it."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from smddp.launch.ports import free_port, hold_port


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, ""), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")]
)
def test_a_free_port_is_free_on_every_address(family: socket.AddressFamily, address: str) -> None:
    if family is socket.AF_INET6 and not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    with socket.socket(family) as listener:
        listener.bind((address, free_port()))


def test_a_held_port_is_in_use_on_every_address() -> None:
    with hold_port() as held:
        port = held.getsockname()[1]
        for address in ("127.0.0.1", "127.0.0.2"):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((address, port))


@pytest.mark.slow
def test_neither_a_connection_nor_a_program_that_asks_for_any_port_gets_a_held_one() -> None:
    with hold_port() as held, socket.create_server(("127.0.0.1", 0), backlog=1000) as server:
        given = set()
        for _ in range(20_000):  # of the 28,000 that Linux gives
            with socket.create_connection(server.getsockname()) as connection, server.accept()[0]:
                given.add(connection.getsockname()[1])
            with closing(socket.socket()) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("", 0))
                given.add(listener.getsockname()[1])
        assert len(given) > 10_000
        assert held.getsockname()[1] not in given


@pytest.mark.parametrize("use_libuv", [True, False])
def test_a_store_listens_on_a_held_port(use_libuv: bool) -> None:
    with hold_port() as held:
        port = held.getsockname()[1]
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, use_libuv=use_libuv)
        store.set("key", "value")
        assert TCPStore("127.0.0.1", port, is_master=False, use_libuv=use_libuv).get("key") == b"value"
