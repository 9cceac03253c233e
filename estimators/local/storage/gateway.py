"""The proxy in front of SeaweedFS's S3: it passes requests and answers on, except where SeaweedFS is not like S3.

The SageMaker SDK uploads code with ``ServerSideEncryption: aws:kms`` and no key, which on AWS means AWS's own key.
SeaweedFS has no such key and refuses. Objects here are on the user's own disk, so the gateway checks the signature,
drops the encryption, and signs the request anew. SeaweedFS checks the signature of every other request itself, but not
that the body matches the signed hash: the gateway checks that. It holds no body in memory, except the last piece until
the whole body is checked, and lists of keys, from which it removes prefixes without objects.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse
from io import BufferedIOBase
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape, unescape

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from estimators.local.api.bounded_server import BoundedHandler, BoundedServer
from estimators.local.api.signature import KeyPair, Request, SignatureError, sign_without, verify
from estimators.local.chaos import Chaos
from estimators.local.chaos.chaos import ErrorResponse, meet_request_faults
from estimators.local.errors import StorageEndedError

_ENCRYPTION = "x-amz-server-side-encryption"
_SIGNED_QUERY = re.compile(r"[?&](X-Amz-)?Signature=")
_PIECE = 1 << 20  # bytes passed on at a time
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "expect"})
"""Headers of one connection, which are not passed on."""
_COMMON_PREFIX = re.compile(rb"<CommonPrefixes>\s*<Prefix>([^<]*)</Prefix>\s*</CommonPrefixes>")
_KEY_COUNT = re.compile(rb"(?<=<KeyCount>)\d+(?=</KeyCount>)")
_URL_ENCODED = b"<EncodingType>url</EncodingType>"


class Gateway:
    """An HTTP server on one of this machine's addresses, in threads of its own.

    ``connect`` returns a connection to SeaweedFS's S3, or raises StorageEndedError with the reason. ``port`` 0 takes
    any free one.
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
        """The URL of the gateway."""
        return f"http://{self._address}:{self._server.server_address[1]}"

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering; abandon requests in progress."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(BoundedServer, TCPServer):
    """A server of TCP, within bounds. HTTPServer would ask DNS for its own name."""

    allow_reuse_address = True


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
                pass  # a client that still sends would see a reset connection, not the answer
            return self._refuse(refusal.status, refusal.code, refusal.message)
        upstream = SocketConnection(self.upstream)
        try:
            stated = headers.get("x-amz-content-sha256", "")
            if headers.get(_ENCRYPTION, "AES256") != "AES256" and "authorization" in headers:
                headers = self._without_encryption(headers)
            # Wait for the first piece: SeaweedFS stores an empty object if a body ends before its first byte. After a
            # piece, it notices a missing rest.
            pieces = _pieces(self.rfile, length, stated)
            first = next(pieces)
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name not in _HOP_BY_HOP:
                    upstream.putheader(name, value)
            upstream.endheaders()
            for piece in itertools.chain([first], pieces):
                upstream.send(piece)
            self._answer(upstream.getresponse(), upstream)
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
        """Return the refusal of a fault that is set, or None; an unsigned request meets none and uses none up."""
        if self.chaos.is_empty:
            return None
        try:
            self._verified(headers)
        except SignatureError:  # also an older kind of signature, which SeaweedFS knows
            return None
        return meet_request_faults(self.chaos, "s3", self.command, headers.get("user-agent", ""))

    def _verified(self, headers: dict[str, str]) -> Request:
        """Return the request after a check of its signature, with the hash of the body that the headers state."""
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

    def _answer(self, response: HTTPResponse, upstream: HTTPConnection) -> None:
        pieces, has_length = _response_pieces(response), response.length is not None
        if response.status == 200 and has_common_prefixes(self.command, self.path):
            bucket = self.path.partition("?")[0].strip("/")
            # The answer is read before the same connection asks for the prefixes.
            listing = _without_empty(b"".join(pieces), partial(_has_objects, upstream, self.keys, bucket))
            pieces, has_length = iter([listing]), False
        first = next(pieces, b"")  # read before the status is sent, since the read may fail
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in _HOP_BY_HOP and (has_length or name.lower() != "content-length"):
                self.send_header(name, value)
        if not has_length:
            self.send_header("Content-Length", str(len(first)))
        self.end_headers()
        self.wfile.write(first)
        del first  # free it: a client may take hours over the rest
        for piece in pieces:
            self.wfile.write(piece)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Refuse as S3 does, and close the connection, without waiting for the rest of a body."""
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
        """Log no requests: the platform's log is for failures."""


def _problem_of_key(target: str, *, has_body: bool) -> str | None:
    """Return the problem of a key that SeaweedFS would store under another name, or not at all; else None.

    SeaweedFS silently drops empty parts, turns a backslash into "/", hides parts named .uploads, and drops the content
    of a key that ends with "/", which is a directory to it.
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
    """Yield the body of an answer in pieces; a body without a length (a list or an error) is small, and one piece.

    Raise OSError or HTTPException if the connection ends before the body does.
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
    """Yield a body in pieces, at least one; the last comes only after the whole body is checked against a signed hash.

    Raise SignatureError if the hash differs, OSError if the body is incomplete.
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


def has_common_prefixes(command: str, target: str) -> bool:
    """Return whether the answer to a request is a list that may have common prefixes: of a bucket, by a delimiter."""
    path, _, query = target.partition("?")
    return command == "GET" and "/" not in path.strip("/") and "delimiter" in parse_qs(query)


def _without_empty(listing: bytes, has_objects: Callable[[str], bool]) -> bytes:
    """Return a list without the common prefixes for which `has_objects` returns False.

    To S3 a prefix is a part of a key: it is listed as long as an object has it. SeaweedFS lists its directories
    instead. It removes an empty one some minutes later, or never if it ended before.
    """

    def kept(found: re.Match[bytes]) -> bytes:
        text = unescape(found[1].decode())
        return found[0] if has_objects(unquote(text) if _URL_ENCODED in listing else text) else b""

    shown = _COMMON_PREFIX.sub(kept, listing)
    removed = listing.count(b"<CommonPrefixes>") - shown.count(b"<CommonPrefixes>")
    return _KEY_COUNT.sub(lambda found: b"%d" % (int(found[0]) - removed), shown)


def _has_objects(connection: HTTPConnection, keys: KeyPair, bucket: str, prefix: str) -> bool:
    """Ask SeaweedFS whether any key of a bucket begins with a prefix. If it does not answer with a list, say yes."""
    target = f"/{bucket}?list-type=2&max-keys=1&prefix={quote(prefix, safe='')}"
    request = AWSRequest(method="GET", url=f"http://{connection.host}{target}")
    S3SigV4Auth(Credentials(keys.access_key, keys.secret_key), "s3", "us-east-1").add_auth(request)
    connection.request("GET", target, headers=dict(request.headers.items()))
    answer = connection.getresponse()
    return b"<Contents>" in answer.read() or answer.status != 200
