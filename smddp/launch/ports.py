"""TCP ports of the nodes' rendezvous: a free one, and the check of a given one."""

from __future__ import annotations

import socket

from smddp.errors import DistributedError


def free_port() -> int:
    """Return a TCP port of this machine without a listener at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def check_port(port: int) -> None:
    """Raise DistributedError unless the number is a TCP port, or 0 for any free one."""
    if not 0 <= port < 2**16:
        raise DistributedError(f"The master port {port} is no TCP port: give one from 1 to 65535.")
