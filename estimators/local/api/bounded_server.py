"""A threading HTTP server that idle and slow clients can't stop: bounds on connections, request heads and waiting.

Mix `BoundedServer` into a `socketserver` server and `BoundedHandler` into its `http.server` request handler. How large
a body may be is the application's business: it reads the body, or does not.
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

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_CONNECTIONS = 192
"""At once. What that takes of open files, with all servers of a platform, `estimators.local.serve` sees to."""
HEAD_SECONDS = 20.0
"""From the connection, or the last answer, to the end of a request's headers: so long may a connection be idle."""
MAX_HEAD_BYTES = 64 << 10
"""The request line and all headers; AWS takes 16 KiB at most."""
SILENCE_SECONDS = 20.0
"""How long a client may send nothing of a body it has announced."""
SLOWEST_BYTES_PER_SECOND = 16 << 10
"""What a client must send of a body on average, after its first `SILENCE_SECONDS`."""
STALL_SECONDS = 20.0
"""After so long, a client that takes nothing of its answer gives way to new connections. Until then, and while there is
room, it may take its time: a program may read an object over hours."""
_PIECE = 256 << 10


class BoundedServer(ThreadingMixIn):
    """Holds `MAX_CONNECTIONS` at most. If another one comes, the one that has waited longest for its client gives way.

    A connection that the server works for never gives way: the next one waits until there is room. One whose body is
    waited for may: clients on this machine send faster than it is read, and who sends drop by drop has waited longest.
    """

    daemon_threads = True
    request_queue_size = 128  # connections that the kernel holds until they are accepted

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.connections = Connections(MAX_CONNECTIONS)
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection in a thread of its own, once there is room for it."""
        self.connections.admit(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection; socketserver calls it at the end of each, however that came."""
        super().shutdown_request(request)  # type: ignore[misc]  # of the server that this is mixed into
        self.connections.remove(request)

    def shutdown(self) -> None:
        """Stop accepting connections."""
        self.connections.open_the_gate()
        super().shutdown()  # type: ignore[misc]


class Connections:
    """The open connections, and which of them wait for their clients."""

    def __init__(self, most: int) -> None:
        self._most = most
        # One lock for all: `_waiting` is a part of `_open`, ordered by when the wait began.
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._waiting: dict[socket.socket, None] = {}
        self._closing = False

    def admit(self, connection: socket.socket) -> None:
        """Count a connection in, as one that waits for its client. Blocks while there is no room."""
        with self._changed:
            while len(self._open) >= self._most and not self._closing:
                if self._waiting:
                    oldest = next(iter(self._waiting))
                    del self._waiting[oldest]
                    with contextlib.suppress(OSError):  # its client was faster
                        oldest.shutdown(socket.SHUT_RDWR)  # its thread sees an end, and closes it
                self._changed.wait()
            self._open.add(connection)
            self._waiting[connection] = None

    def waits(self, connection: socket.socket) -> None:
        """Note that the connection waits for its client, and may be closed for another."""
        with self._changed:
            if connection not in self._waiting:
                self._waiting[connection] = None
                self._changed.notify()

    def works(self, connection: socket.socket) -> None:
        """Note that the server works for this connection, which therefore is not closed for another."""
        with self._changed:
            self._waiting.pop(connection, None)

    def remove(self, connection: socket.socket) -> None:
        """Count a connection out; it is closed."""
        with self._changed:
            self._open.discard(connection)
            self._waiting.pop(connection, None)
            self._changed.notify()

    def open_the_gate(self) -> None:
        """Let every connection through: the server closes."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()


class BoundedHandler(BaseHTTPRequestHandler):
    """Reads within the bounds above, and tells the server when it waits for the client."""

    server: Any  # a BoundedServer
    # What http.server refuses by itself, before any application sees it: in S3's form, where it has a page of HTML.
    error_content_type = "application/xml"
    error_message_format = "<Error><Code>%(code)d</Code><Message>%(message)s</Message></Error>"

    def setup(self) -> None:
        """Put the bounds between the socket and whoever reads and writes."""
        super().setup()
        self.rfile.close()
        self._reader = _Reader(self.connection, self.server.connections)
        self.rfile = io.BufferedReader(self._reader)
        self.wfile = self._writer = _Writer(self.connection, self.server.connections)

    def handle(self) -> None:
        """Serve the connection; a client that leaves, or is made to, is no error."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle()

    def handle_one_request(self) -> None:
        """Wait for a request and answer it."""
        self.server.connections.waits(self.connection)
        self._reader.expect_head()
        super().handle_one_request()

    def flush_headers(self) -> None:
        """Keep the headers for the first bytes of the body.

        The server may be killed between the two, and botocore takes headers without their body for an empty answer.
        """
        self._writer.keep_head(b"".join(self._headers_buffer))
        self._headers_buffer: list[bytes] = []

    def handle_expect_100(self) -> bool:
        """Say at once that the body may come: the client waits for it."""
        goes_on = super().handle_expect_100()
        self._writer.flush()
        return goes_on

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request. http.server does not flush after it, and to HEAD it sends no body."""
        super().send_error(code, message, explain)
        self._writer.flush()

    def finish(self) -> None:
        """Close the connection, without the headers of an answer that was given up."""
        self._writer.discard_head()
        super().finish()

    def parse_request(self) -> bool:
        """Read the headers; the bounds are then the body's."""
        try:
            parsed = super().parse_request()
        except _HeadTooLargeError:
            self.close_connection = True
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return False
        self.server.connections.works(self.connection)
        self._reader.expect_body()
        return parsed


class _HeadTooLargeError(ConnectionError):
    """The headers don't end."""


class _Reader(io.RawIOBase):
    """A socket's bytes, within the bounds of what is expected of it.

    A `TimeoutError` or `ConnectionError` ends the connection: nothing that was cut off is ever taken for a whole.
    """

    def __init__(self, connection: socket.socket, connections: Connections) -> None:
        self._connection = connection
        self._connections = connections
        self.expect_head()

    def expect_head(self) -> None:
        """Begin a request line and headers: all of it has one deadline."""
        self._deadline: float | None = time.monotonic() + HEAD_SECONDS
        self._received = 0

    def expect_body(self) -> None:
        """Begin a body: only the time spent waiting for it counts, not what its reader does meanwhile."""
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
        if self._deadline is not None:  # during all of a head, the connection counts as one that waits
            self._connection.settimeout(patience)
            return self._connection.recv_into(buffer)
        self._connection.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            return self._connection.recv_into(buffer)
        # It may give way from the first moment on: after any grace, a byte in time would begin it anew. If `admit`
        # has closed it meanwhile, what had come is still read, and then an end: never less than a body as a whole one.
        self._connections.waits(self._connection)
        self._connection.settimeout(patience)
        count = self._connection.recv_into(buffer)
        self._connections.works(self._connection)
        return count


class _Writer(io.BufferedIOBase):
    """Writes an answer at its reader's pace, its head together with the first bytes that follow."""

    def __init__(self, connection: socket.socket, connections: Connections) -> None:
        self._connection = connection
        self._connections = connections
        self._head = b""  # not sent yet

    def writable(self) -> bool:
        return True

    def keep_head(self, head: bytes) -> None:
        """Send the head of an answer by the next `write` or `flush`."""
        self._head = head

    def discard_head(self) -> None:
        """Never send the head that is kept."""
        self._head = b""

    def write(self, data: Buffer, /) -> int:
        rest = memoryview(data).cast("B")
        length = rest.nbytes
        if self._head:
            room = max(0, _PIECE - len(self._head))
            # It is forgotten before it is sent: `flush` must not say again what a failed send may have said.
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
            self._connections.waits(self._connection)
        self._connection.settimeout(None)
        sent = self._connection.send(piece)
        self._connections.works(self._connection)
        return sent
