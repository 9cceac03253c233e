"""TCP ports of the nodes' rendezvous: a free one, and the check of a given one."""

from __future__ import annotations

import socket

from smddp.errors import DistributedError


def free_port() -> int:
    """Return a TCP port that is free on every address of this machine. Listen there at once, or use `hold_port`."""
    with hold_port() as held:
        return int(held.getsockname()[1])


def hold_port() -> socket.socket:
    """Return a socket that holds a free TCP port, on every address of this machine, until it is closed.

    It does not listen, and sets SO_REUSEADDR, so a store of another process can listen on the port. Until then Linux
    gives the port neither to a connection nor to a program that asks for any port.
    """
    try:
        return _bind(socket.AF_INET6)
    except OSError:  # this machine has no IPv6
        return _bind(socket.AF_INET)


def _bind(family: socket.AddressFamily) -> socket.socket:
    held = socket.socket(family)
    try:
        if family is socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # on IPv4's addresses, too
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
    except OSError:
        held.close()
        raise
    return held


def check_port(port: int) -> None:
    """Raise DistributedError unless the number is a TCP port, or 0 for any free one."""
    if not 0 <= port < 2**16:
        raise DistributedError(f"The master port {port} is no TCP port: give one from 1 to 65535.")
