"""Addresses and ports of hosts that are processes of one machine.

Every cluster gets its own network in 127.0.0.0/8, so that hosts of different jobs do not share an address.
"""

from __future__ import annotations

import random
import socket
import threading
from collections import deque
from collections.abc import Iterable

# Guards `_given`, so that jobs that start at once get different ports. Held for 1000 probes at most, and no other lock
# is taken under it.
_lock = threading.Lock()
_given: deque[int] = deque(maxlen=1000)
"""Ports of jobs that may still run."""


def give_addresses(hosts: Iterable[str]) -> dict[str, str]:
    """Return an address for each host, 254 at most, in a random network from 127.1.0.0 to 127.255.255.0."""
    network = f"127.{random.randint(1, 255)}.{random.randint(0, 255)}"  # noqa: S311  # not a secret
    return {host: f"{network}.{number}" for number, host in enumerate(hosts, start=1)}


def free_port_on_all_addresses() -> int:
    """Return a TCP port that is free on every address of the machine, if possible none of the last thousand."""
    with _lock:
        for _ in range(1000):
            with socket.socket() as probe:
                probe.bind(("", 0))
                port: int = probe.getsockname()[1]
            if port not in _given:
                break
        _given.append(port)
        return port
