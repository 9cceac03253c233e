"""A free port is free wherever a store listens, and is given once."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from smddp.launch import ports


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, ""), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")]
)
def test_a_free_port_is_free_on_every_address(family: socket.AddressFamily, address: str) -> None:
    if family is socket.AF_INET6 and not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    with socket.socket(family) as listener:
        listener.bind((address, ports.free_port()))


def test_the_probe_listens_where_a_store_does() -> None:
    """A port that another program has on one address only is not free."""
    with ExitStack() as opened:
        probe = opened.enter_context(ports._listener())
        port = probe.getsockname()[1]
        for address in ("127.0.0.1", "127.0.0.2"):
            other = opened.enter_context(socket.socket())
            with pytest.raises(OSError, match="in use"):
                other.bind((address, port))


def test_ports_of_calls_at_once_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter([40001, 40001, 40002])

    class Probe:
        def __enter__(self) -> Probe:
            return self

        def __exit__(self, *_: object) -> None: ...

        def getsockname(self) -> tuple[str, int]:
            return "", next(numbers)

    monkeypatch.setattr(ports, "_listener", Probe)
    assert [ports.free_port() for _ in range(2)] == [40001, 40002]
