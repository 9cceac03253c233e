"""HTTP over a socket other than TCP's."""

from __future__ import annotations

import socket
from collections.abc import Callable
from http.client import HTTPConnection

_SECONDS = 60.0
"""Longest silence in seconds of a busy server on this machine."""


class SocketConnection(HTTPConnection):
    """An HTTP connection over the socket that a function returns."""

    def __init__(self, make: Callable[[], socket.socket]) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._make = make

    def connect(self) -> None:
        """Connect, when the first request is sent."""
        self.sock = self._make()
        self.sock.settimeout(self.timeout)
