"""Bytes that have arrived in a pipe, a pseudoterminal or a socket, and that nobody has read."""

from __future__ import annotations

import array
import fcntl
import socket
import termios
from typing import IO


def has_unread(source: IO[bytes] | socket.socket) -> bool:
    """Return whether a pipe, pseudoterminal or socket has unread bytes, without a wait; False if it is closed."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(source, termios.FIONREAD, count)
    except (OSError, ValueError):
        return False
    return count[0] > 0
