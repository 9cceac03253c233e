"""A proxy before an S3 server that fails as networks and servers do, at the requests one chooses."""

from __future__ import annotations

import enum
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_SILENT_SECONDS = 4.0  # longer than the timeout of a test's client
_SLOW_SECONDS = 0.6
_PIECE = 1 << 16


class Fault(enum.Enum):
    """What happens to a request."""

    INTERNAL_ERROR = "500 before anything is done"
    LOST_ANSWER = "500 although it was done"
    SLOW_DOWN = "503 SlowDown"
    SILENCE = "no answer, although it was done"
    REFUSED = "the connection is reset before the server sees the request"
    RESET = "it is done, and the connection is reset in the middle of the answer"
    TRUNCATED = "it is done, and the answer ends too early"
    SLOW = "the answer trickles"
    EXPIRED = "403 ExpiredToken"


_ANSWERS = {
    Fault.INTERNAL_ERROR: (500, "InternalError"),
    Fault.LOST_ANSWER: (500, "InternalError"),
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.EXPIRED: (403, "ExpiredToken"),
}
_NOT_DONE = {Fault.INTERNAL_ERROR, Fault.SLOW_DOWN, Fault.REFUSED, Fault.EXPIRED}
_OWN_BUSINESS = {"connection", "keep-alive", "transfer-encoding", "expect"}


class FaultProxy:
    """Counts the requests, and lets some of them fail."""

    def __init__(self, upstream: str) -> None:
        self.requests: list[str] = []
        """``PUT /bucket/key?query`` of each request since `begin`."""
        self._choose: Callable[[int], Fault | None] = lambda _: None
        self._lock = threading.Lock()
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"upstream": urlsplit(upstream).netloc, "proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.endpoint_url = f"http://127.0.0.1:{self._server.server_port}"

    def begin(self, choose: Callable[[int], Fault | None] = lambda _: None) -> None:
        """Count from 0 again.

        Args:
            choose: gives the fault of a request by its number. It may also do something, kill a process for instance.
        """
        with self._lock:
            self.requests, self._choose = [], choose

    def fault_of(self, request: str) -> Fault | None:
        """Count a request, and say what is to happen to it."""
        with self._lock:
            self.requests.append(request)
            number, choose = len(self.requests) - 1, self._choose
        return choose(number)

    @contextmanager
    def running(self) -> Iterator[FaultProxy]:
        """Answer within the block."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.closing.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: str
    proxy: FaultProxy

    def _pass_on(self) -> None:
        fault = self.proxy.fault_of(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if fault not in _NOT_DONE:
            status, headers, content = self._ask_server(body)
        if fault in _ANSWERS:
            status, code = _ANSWERS[fault]
            content = f"<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>".encode()
            headers = {"content-type": "application/xml", "content-length": str(len(content))}
        elif fault is Fault.SILENCE:
            self.proxy.closing.wait(_SILENT_SECONDS)
        if fault in (Fault.REFUSED, Fault.SILENCE):
            return self._reset()
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            content = b""
        if fault in (Fault.RESET, Fault.TRUNCATED):
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.close_connection = True
            return self._reset() if fault is Fault.RESET else None
        for start in range(0, len(content), _PIECE):
            if fault is Fault.SLOW:
                time.sleep(_SLOW_SECONDS / -(-len(content) // _PIECE))
            self.wfile.write(content[start : start + _PIECE])
        return None

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815 - http.server's names

    def _ask_server(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OWN_BUSINESS:
                    connection.putheader(name, value)
            connection.endheaders()
            connection.send(body)
            answer = connection.getresponse()
            content = answer.read()
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in _OWN_BUSINESS}
            if self.command != "HEAD":
                headers = {name: value for name, value in headers.items() if name.lower() != "content-length"}
                headers["Content-Length"] = str(len(content))
            return answer.status, headers, content
        finally:
            connection.close()

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def handle(self) -> None:
        with suppress(OSError, ValueError):  # the client gave up, or a fault closed the connection
            super().handle()

    def finish(self) -> None:
        with suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *_: Any) -> None:
        pass
