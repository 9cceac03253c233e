"""A threading HTTP server that idle and slow clients can't block: bounded connections, request heads and waits.

Mix `BoundedServer` into a `socketserver` server and `BoundedHandler` into its `http.server` request handler. The
application reads the body, and so bounds its size.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any

from smddp.process.unread_bytes import has_unread

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_CONNECTIONS = 192
"""Limit of open connections. `estimators.local.serve` provides the open files for all servers of a platform."""
HEAD_SECONDS = 20.0
"""Seconds from the connection, or from the last answer, to the end of a request's headers: the longest idle time."""
MAX_HEAD_BYTES = 64 << 10
"""Limit of the request line and all headers; AWS takes 16 KiB at most."""
SILENCE_SECONDS = 20.0
"""Longest pause of a client in the body that it has announced."""
SLOWEST_BYTES_PER_SECOND = 16 << 10
"""Least average rate of a body, after its first `SILENCE_SECONDS`."""
GRACE_SECONDS = 0.5
"""Time in which a request may arrive before its connection may be closed for a new connection."""
STALL_SECONDS = 20.0
"""Time after which a client that reads nothing of its answer may be closed for a new connection. While there is room,
it stays open: a program may read an object for hours."""
BUSY_SECONDS = 10.0
"""Longest wait of a new connection while the server works for all others, less than a client's read timeout."""
BUSY_CONTENT = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
BUSY = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
    % (len(BUSY_CONTENT), BUSY_CONTENT)
)
"""The answer to a connection without room: S3's throttling error, whose status lets boto3 retry in every service."""
_PIECE = 256 << 10


class BoundedServer(ThreadingMixIn):
    """A server with `MAX_CONNECTIONS` at most. A new one closes the connection that has waited longest for its request.

    A connection that the server works for is never closed, nor one in its first `GRACE_SECONDS`: the new one waits
    until there is room. After that, a connection whose body still arrives may be closed: clients on this machine send
    faster than the server reads, so the client that has waited longest is one that sends byte by byte. While the server
    works for all its connections, a new one is refused with `BUSY` after `BUSY_SECONDS` without room.
    """

    daemon_threads = True
    request_queue_size = 128  # connections that the kernel holds until they are accepted

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.connections = Connections(MAX_CONNECTIONS)
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection in a thread of its own, once there is room for it; refuse it if none comes."""
        if self.connections.admit(request):
            super().process_request(request, client_address)
        else:
            with contextlib.suppress(OSError):  # its client has left
                request.sendall(BUSY)  # never blocks: nothing else is in the buffer of a new socket
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection; socketserver calls this at the end of each, in every case."""
        super().shutdown_request(request)  # type: ignore[misc]  # of the server that this is mixed into
        self.connections.remove(request)

    def shutdown(self) -> None:
        """Stop accepting connections."""
        self.connections.open_the_gate()
        super().shutdown()  # type: ignore[misc]


class Connections:
    """The open connections, and the idle ones among them."""

    def __init__(self, most: int) -> None:
        self._most = most
        # Guards `_open`, `_waiting` (a subset of it), `_full_since` and `_closing`; no other lock is taken under it.
        # Only `admit` waits on it, for `BUSY_SECONDS` at most while no connection leaves or waits for its client:
        # `remove`, `waits` and `open_the_gate` end the wait.
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._waiting: dict[socket.socket, float] = {}  # since when the request is awaited
        self._full_since: float | None = None  # since when `admit` finds all connections served
        self._closing = False

    def admit(self, connection: socket.socket) -> bool:
        """Add a connection, as one that waits for its client; return False if there is no room in time."""
        with self._changed:
            while len(self._open) >= self._most and not self._closing:
                now = time.monotonic()
                oldest = self._idle_longest()
                if oldest is None:
                    self._full_since = now if self._full_since is None else self._full_since
                    patience = self._full_since + BUSY_SECONDS - now
                    if patience <= 0:
                        return False
                else:
                    self._full_since = None
                    patience = self._waiting[oldest] + GRACE_SECONDS - now
                    if patience <= 0:
                        del self._waiting[oldest]
                        with contextlib.suppress(OSError):  # its client was faster
                            oldest.shutdown(socket.SHUT_RDWR)  # its thread sees an end, and closes it
                        patience = BUSY_SECONDS
                self._changed.wait(patience)
            self._open.add(connection)
            self._waiting[connection] = time.monotonic()
            self._full_since = None
            return True

    def _idle_longest(self) -> socket.socket | None:
        """Return the connection that has waited longest for its client; one with unread bytes only if all have some.

        Its thread may not have run since a request arrived, and a client does not expect the end of it.
        """
        ordered = sorted(self._waiting, key=self._waiting.__getitem__)
        return next((each for each in ordered if not has_unread(each)), ordered[0] if ordered else None)

    def waits(self, connection: socket.socket, since: float) -> None:
        """Mark a connection as idle: `GRACE_SECONDS` after `since`, it may be closed to make room for a new one."""
        with self._changed:
            if connection not in self._waiting:
                self._waiting[connection] = since
                self._changed.notify()

    def works(self, connection: socket.socket) -> None:
        """Mark a connection as being served: it is not closed to make room for a new connection."""
        with self._changed:
            self._waiting.pop(connection, None)

    def remove(self, connection: socket.socket) -> None:
        """Remove a closed connection."""
        with self._changed:
            if connection in self._open:
                self._open.remove(connection)
                self._waiting.pop(connection, None)
                self._full_since = None
                self._changed.notify()

    def open_the_gate(self) -> None:
        """Admit every connection from now on, because the server closes."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()


class BoundedHandler(BaseHTTPRequestHandler):
    """Reads requests within the bounds above, and tells the server when it waits for the client."""

    server: Any  # a BoundedServer
    # The form of http.server's own refusals: S3's XML in place of an HTML page.
    error_content_type = "application/xml"
    error_message_format = "<Error><Code>%(code)d</Code><Message>%(message)s</Message></Error>"

    def setup(self) -> None:
        """Put the bounded reader and writer around the socket."""
        super().setup()
        self.rfile.close()
        self._reader = _Reader(self.connection, self.server.connections)
        self.rfile = io.BufferedReader(self._reader)
        self.wfile = self._writer = _Writer(self.connection, self.server.connections)

    def handle(self) -> None:
        """Serve the connection; a client that leaves, or is closed, is not an error."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle()

    def handle_one_request(self) -> None:
        """Wait for a request and answer it."""
        self._reader.expect_head()
        super().handle_one_request()

    def flush_headers(self) -> None:
        """Keep the headers until the first bytes of the body.

        If the server is killed between the two, botocore takes headers without a body for an empty answer.
        """
        self._writer.keep_head(b"".join(self._headers_buffer))
        self._headers_buffer: list[bytes] = []

    def handle_expect_100(self) -> bool:
        """Send "100 Continue" at once, because the client waits for it."""
        goes_on = super().handle_expect_100()
        self._writer.flush()
        return goes_on

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request and flush, because http.server does not; HEAD gets no body."""
        super().send_error(code, message, explain)
        self._writer.flush()

    def finish(self) -> None:
        """Close the connection, without the headers of an abandoned answer."""
        self._writer.discard_head()
        super().finish()

    def parse_request(self) -> bool:
        """Read the headers, then switch to the bounds of a body."""
        try:
            parsed = super().parse_request()
        except _HeadTooLargeError:
            self.close_connection = True
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return False
        self._reader.expect_body()
        return parsed


class _HeadTooLargeError(ConnectionError):
    """The headers exceed `MAX_HEAD_BYTES`."""


class _Reader(io.RawIOBase):
    """The bytes of a socket, within the bounds of a head or a body.

    A `TimeoutError` or `ConnectionError` ends the connection, so that a truncated request never passes for a whole one.
    """

    def __init__(self, connection: socket.socket, connections: Connections) -> None:
        self._connection = connection
        self._connections = connections
        self.expect_head()

    def expect_head(self) -> None:
        """Expect a request line and headers, with one deadline for all of it."""
        self.since = time.monotonic()  # when this request was awaited first: a late byte begins no new grace
        self._deadline: float | None = self.since + HEAD_SECONDS
        self._received = 0

    def expect_body(self) -> None:
        """Expect a body: only the time spent waiting for the client counts, not the work of its reader."""
        self._deadline = None
        self._received, self._waited = 0, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        if self._deadline is not None and self._received >= MAX_HEAD_BYTES:
            raise _HeadTooLargeError
        began = time.monotonic()
        if self._deadline is not None:
            patience = self._deadline - began
        else:
            patience = min(SILENCE_SECONDS, SILENCE_SECONDS + self._received / SLOWEST_BYTES_PER_SECOND - self._waited)
        if patience <= 0:
            raise TimeoutError("the client is too slow")
        count = self._receive(buffer, patience)
        self._received += count
        if self._deadline is None:
            self._waited += time.monotonic() - began
            if not count:
                raise ConnectionResetError("the client left in the middle of a body")
        return count

    def _receive(self, buffer: Buffer, patience: float) -> int:
        # A connection is marked as served before its bytes are taken from the kernel, and as idle only if there are
        # none: at every moment, what has arrived is either unread or being served, and `admit` sees one of the two.
        self._connections.works(self._connection)
        self._connection.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            return self._connection.recv_into(buffer)
        # If `admit` closes the connection, the bytes that have arrived are read, then the end: a truncated body never
        # passes for a whole one.
        self._connections.waits(self._connection, self.since)
        self._connection.settimeout(patience)
        self._connection.recv(1, socket.MSG_PEEK)
        self._connections.works(self._connection)
        return self._connection.recv_into(buffer)


class _Writer(io.BufferedIOBase):
    """Writes an answer at its client's pace, and its head together with the first bytes of its body."""

    def __init__(self, connection: socket.socket, connections: Connections) -> None:
        self._connection = connection
        self._connections = connections
        self._head = b""  # not sent yet

    def writable(self) -> bool:
        return True

    def keep_head(self, head: bytes) -> None:
        """Keep the head of an answer for the next `write` or `flush`."""
        self._head = head

    def discard_head(self) -> None:
        """Drop the kept head without sending it."""
        self._head = b""

    def write(self, data: Buffer, /) -> int:
        rest = memoryview(data).cast("B")
        length = rest.nbytes
        if self._head:
            room = max(0, _PIECE - len(self._head))
            # Forget the head before sending it: after a failed send, `flush` must not send it again.
            first, self._head = self._head + bytes(rest[:room]), b""
            self._send_all(memoryview(first))
            rest = rest[room:]
        self._send_all(rest)
        return length

    def flush(self) -> None:
        if self._head:
            self.write(b"")

    def _send_all(self, rest: memoryview) -> None:
        while rest:
            rest = rest[self._send(rest[:_PIECE]) :]

    def _send(self, piece: memoryview) -> int:
        self._connection.settimeout(STALL_SECONDS)
        try:
            return self._connection.send(piece)
        except TimeoutError:
            self._connections.waits(self._connection, time.monotonic() - STALL_SECONDS)
        self._connection.settimeout(None)
        sent = self._connection.send(piece)
        self._connections.works(self._connection)
        return sent
