"""TCP ports of the nodes' rendezvous: a free one, and the check of a given one."""

from __future__ import annotations

import socket
import threading
from collections import deque

from smddp.errors import DistributedError

# Guards `_given`, so that calls at once return different ports. Held for 1000 probes at most, and no other lock is
# taken under it.
_lock = threading.Lock()
_given: deque[int] = deque(maxlen=1000)
"""Ports whose listeners may not listen yet."""


def free_port() -> int:
    """Return a TCP port that is free on every address of this machine, where a store listens.

    It is free at this moment: call it as late as possible. It is none of the last thousand, if possible.
    """
    with _lock:
        for _ in range(1000):
            with _listener() as probe:
                port = int(probe.getsockname()[1])
            if port not in _given:
                break
        _given.append(port)
        return port


def _listener() -> socket.socket:
    """Listen on any port, on all IPv6 and IPv4 addresses that this machine has."""
    try:
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):  # this machine has no IPv6
        return socket.create_server(("", 0))


def check_port(port: int) -> None:
    """Raise DistributedError unless the number is a TCP port, or 0 for any free one."""
    if not 0 <= port < 2**16:
        raise DistributedError(f"The master port {port} is no TCP port: give one from 1 to 65535.")
