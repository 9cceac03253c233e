"""HTTP over a socket that is not one of TCP."""

from __future__ import annotations

import socket
from collections.abc import Callable
from http.client import HTTPConnection

_SECONDS = 60.0
"""The longest silence of a server on this machine that is at work."""


class SocketConnection(HTTPConnection):
    """A client's connection, by a function that makes it."""

    def __init__(self, make: Callable[[], socket.socket]) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._make = make

    def connect(self) -> None:
        """Connect, when the first request is sent."""
        self.sock = self._make()
        self.sock.settimeout(self.timeout)
