"""The door to SeaweedFS's S3: it passes every request on as it came, but for encryption by a key of AWS.

The SageMaker SDK uploads code with ``ServerSideEncryption: aws:kms`` and no key, which on AWS means AWS's own key.
SeaweedFS knows no such key and refuses. Objects here lie on the user's own disk: the wish is dropped, and the request
signed anew, after its own signature was checked. Any other request SeaweedFS checks itself, unchanged, but that the
body is the one that was signed for: it does not. No body is held; the last piece is, until the whole is known.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import socket
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPResponse
from http.server import HTTPServer
from io import BufferedIOBase
from typing import Any
from urllib.parse import unquote
from xml.sax.saxutils import escape

from estimators.local.api.bounded_server import BoundedHandler, BoundedServer
from estimators.local.api.signature import KeyPair, Request, SignatureError, sign_without, verify
from estimators.local.chaos import Chaos
from estimators.local.chaos.requests import ErrorResponse, meet
from estimators.local.errors import StorageEndedError
from estimators.local.storage.socket_connection import SocketConnection

_ENCRYPTION = "x-amz-server-side-encryption"
_SIGNED_QUERY = re.compile(r"[?&](X-Amz-)?Signature=")
_PIECE = 1 << 20  # bytes passed on at a time
_OWN_BUSINESS = frozenset({"connection", "keep-alive", "transfer-encoding", "expect"})
"""Headers between one client and one server: they are not passed on."""


class Gateway:
    """An HTTP server on one of this machine's addresses, in threads of its own.

    Args:
        connect: Makes a connection to SeaweedFS's S3, or raises StorageEndedError with the reason why there is none.
        keys: What requests are signed with.
        chaos: The faults that requests meet.
        address: Where it answers.
        port: Its port there; 0 takes any free one.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], socket.socket],
        keys: KeyPair,
        chaos: Chaos,
        address: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        handler = type("Handler", (_Handler,), {"upstream": staticmethod(connect), "keys": keys, "chaos": chaos})
        self._address = address
        self._server = _Server((address, port), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="s3-gateway", daemon=True)

    @property
    def endpoint_url(self) -> str:
        """Where it answers."""
        return f"http://{self._address}:{self._server.server_port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering; requests in progress are abandoned."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(BoundedServer, HTTPServer):
    """An HTTP server, within bounds."""


class _Handler(BoundedHandler):
    protocol_version = "HTTP/1.1"
    upstream: Callable[[], socket.socket]
    keys: KeyPair
    chaos: Chaos

    def _pass_on(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        announced = headers.get("content-length", "0")
        if re.fullmatch("[0-9]{1,18}", announced, re.ASCII) is None:
            return self._refuse(400, "InvalidRequest", f"Content-Length: {announced[:40]!r} is no number of bytes.")
        length = int(announced)
        if "origin" in headers or "transfer-encoding" in headers:
            return self._refuse(403, "AccessDenied", "Requests from web pages, or without a length, are refused.")
        if "authorization" not in headers and _SIGNED_QUERY.search(self.path) is None:
            return self._refuse(403, "AccessDenied", "The request is not signed.")
        if problem := _problem_of_key(self.path, has_body=length > 0):
            return self._refuse(400, "InvalidArgument", problem)
        if (refusal := self._meet_fault(headers)) is not None:
            for _ in _pieces(self.rfile, length, stated=""):
                pass  # a client that still sends would see a reset connection in place of the answer
            return self._refuse(refusal.status, refusal.code, refusal.message)
        upstream = SocketConnection(self.upstream)
        try:
            stated = headers.get("x-amz-content-sha256", "")
            if headers.get(_ENCRYPTION, "AES256") != "AES256" and "authorization" in headers:
                headers = self._without_encryption(headers)
            # SeaweedFS takes a body that ends before its first byte for an empty one, and stores that. Once a piece has
            # come, it notices that the rest is missing.
            pieces = _pieces(self.rfile, length, stated)
            first = next(pieces)
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name not in _OWN_BUSINESS:
                    upstream.putheader(name, value)
            upstream.endheaders()
            for piece in itertools.chain([first], pieces):
                upstream.send(piece)
            self._answer(upstream.getresponse())
        except SignatureError as error:
            self._refuse(403, error.code, str(error))
        except StorageEndedError as error:
            self._refuse(503, "ServiceUnavailable", f"{error}\nStart the local platform again.")
        except (OSError, HTTPException) as error:
            self.close_connection = True
            self.log_error("%s %s: %s", self.command, self.path, error)
        finally:
            upstream.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815 - http.server's names

    def _meet_fault(self, headers: dict[str, str]) -> ErrorResponse | None:
        """Let the request meet the faults that are set; one of a stranger meets none, and so uses none up."""
        if self.chaos.is_empty:
            return None
        try:
            self._verified(headers)
        except SignatureError:  # or an older kind of signature, which SeaweedFS knows
            return None
        return meet(self.chaos, "s3", self.command, headers.get("user-agent", ""))

    def _verified(self, headers: dict[str, str]) -> Request:
        """Return the request as it was signed, of whose body only the hash is known that its headers state."""
        path, _, query = self.path.partition("?")
        stated = headers.get("x-amz-content-sha256", "")
        request = Request(method=self.command, path=path, query=query, headers=headers, body_sha256=lambda: stated)
        verify(request, self.keys)
        return request

    def _without_encryption(self, headers: dict[str, str]) -> dict[str, str]:
        request = self._verified(headers)
        dropped = {name for name in headers if name.startswith(_ENCRYPTION)}
        kept = {name: value for name, value in headers.items() if name not in dropped}
        return {**kept, "authorization": sign_without(request, self.keys, dropped)}

    def _answer(self, response: HTTPResponse) -> None:
        has_length = response.length is not None
        pieces = _response_pieces(response)
        first = next(pieces, b"")  # read before the status is sent, since the read may fail
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in _OWN_BUSINESS:
                self.send_header(name, value)
        if not has_length:
            self.send_header("Content-Length", str(len(first)))
        self.end_headers()
        self.wfile.write(first)
        del first  # a client may take hours over the rest
        for piece in pieces:
            self.wfile.write(piece)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Say no as S3 does, and end the connection: what may follow of a body is not waited for."""
        self.close_connection = True
        content = f"<Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Connection", "close")
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """Say nothing of requests: the platform's log is for what goes wrong."""


def _problem_of_key(target: str, *, has_body: bool) -> str | None:
    """Return what is wrong with the key in a request's path, where SeaweedFS would store another key or none.

    Without a word it leaves out empty parts, makes "/" of a backslash, hides parts named .uploads, and drops what is
    sent to a key that ends with "/", which is a directory to it.
    """
    key = unquote(target.partition("?")[0], errors="surrogateescape").removeprefix("/").partition("/")[2]
    parts = key.removesuffix("/").split("/")
    if key and ("" in parts or "\\" in key or ".uploads" in parts or (key.endswith("/") and has_body)):
        return (
            f"The key {key!a} can't be kept on disk. There, a key has no empty parts, no backslash, no part named "
            ".uploads, and, if it ends with a slash, no content. Take another one, or storage='memory'."
        )
    return None


def _response_pieces(response: HTTPResponse) -> Iterator[bytes]:
    """Yield the body of an answer piece by piece; in one piece what has no length, a list or an error, which is small.

    Raises:
        OSError: The connection ended before the body did.
        HTTPException: Likewise, where the body has no length.
    """
    if response.length is None:
        yield response.read()
        return
    while response.length:
        piece = response.read(_PIECE)
        if len(piece) < _PIECE and response.length:
            raise ConnectionResetError(
                f"SeaweedFS closed the connection {response.length} bytes before its answer's end"
            )
        yield piece


def _pieces(body: BufferedIOBase, length: int, stated: str) -> Iterator[bytes]:
    """Yield a body piece by piece, at least one; the last only once the whole is the one that was signed, if any was.

    Raises:
        SignatureError: It is another one.
        OSError: It is not all there.
    """
    digest = hashlib.sha256()
    is_signed = re.fullmatch("[0-9a-f]{64}", stated) is not None
    while True:
        piece = body.read(min(_PIECE, length))
        assert piece or not length, "an end before the body's own raises"
        length -= len(piece)
        if is_signed:
            digest.update(piece)
        if is_signed and not length and digest.hexdigest() != stated:
            raise SignatureError("XAmzContentSHA256Mismatch", "The body is not the one that was signed.")
        yield piece
        if not length:
            return
