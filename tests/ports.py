"""TCP ports of 127.0.0.1 for processes that a test starts, which listen there some time later.

They lie below those that the kernel gives to whoever asks it for any: it gives none of them to another test meanwhile.
And they lie above those that a job derives from its id, as under Slurm: the job would find its port taken.
"""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import ExitStack

_FIRST, _COUNT, _MOST = 30_000, 2_700, 40
_positions = itertools.count(os.getpid() * 331)  # each process starts elsewhere, and does not soon come back to a port


def free_port() -> int:
    """A port on which nobody listens."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many of them, 40 at most, one after the other."""
    while True:
        position, *_ = itertools.islice(_positions, count)
        first = _FIRST + position % (_COUNT - _MOST)
        ports = list(range(first, first + count))
        try:
            with ExitStack() as listeners:
                for port in ports:
                    listeners.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:  # somebody does
            continue
        return ports
