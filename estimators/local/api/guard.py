"""The gate in front of the whole server: who may talk to it at all.

A server that runs what it is sent must obey nobody but the programs that were given its keys: no web page (a
foreign Origin, a rebound Host), no other user of the machine. A request that is refused has touched nothing behind
the gate.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterable
from email.message import Message
from http import HTTPStatus
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from estimators.local.api.signature import KeyPair, Request, SignatureError, verify

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

logger = logging.getLogger(__name__)

RAW_HEADERS = "smddp.headers"
"""Where in a WSGI environment the server puts the headers as they came: WSGI itself folds their names."""

REGION = "smddp.region"
"""Where the guard puts the region that a request was signed for."""

_CLOSED_PATHS = ("/moto-api", "/latest/meta-data", "/latest/api", "/favicon.ico")
"""moto's own doors: they reset the server's state, or hand out credentials."""


class Guard:
    """A WSGI application that lets only signed requests for this very server through to `inner`."""

    def __init__(self, inner: WSGIApplication, *, keys: KeyPair, address: tuple[str, int]) -> None:
        self._inner = inner
        self._keys = keys
        host, port = address
        names = {host, "localhost"} if host == "127.0.0.1" else {host}
        self._hosts = frozenset(f"{name}:{port}" for name in names)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        body = _body_reader(environ)
        request = _request(environ, body)
        try:
            self._check_address(request, environ["PATH_INFO"])
            environ[REGION] = verify(request, self._keys)
        except SignatureError as error:
            logger.warning("refused %s %s: %s: %s", request.method, request.path, error.code, error)
            return _refuse(error, request, start_response)
        content = body()
        environ["wsgi.input"] = io.BytesIO(content)
        environ["CONTENT_LENGTH"] = str(len(content))
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        return self._inner(environ, start_response)

    def _check_address(self, request: Request, path: str) -> None:
        if "origin" in request.headers:
            raise SignatureError("AccessDenied", "Requests from web pages are refused.")
        if request.headers.get("host") not in self._hosts:
            raise SignatureError("AccessDenied", f"This server answers to {' and '.join(sorted(self._hosts))} only.")
        if path.startswith(_CLOSED_PATHS):
            raise SignatureError("AccessDenied", "There is nothing at this path.")


def _body_reader(environ: WSGIEnvironment) -> Callable[[], bytes]:
    """Read the body at most once, and only when it is asked for."""
    read: list[bytes] = []

    def body() -> bytes:
        if not read:
            stream = environ["wsgi.input"]
            chunked = environ.get("wsgi.input_terminated", False)
            read.append(stream.read() if chunked else stream.read(int(environ.get("CONTENT_LENGTH") or 0)))
        return read[0]

    return body


def _request(environ: WSGIEnvironment, body: Callable[[], bytes]) -> Request:
    message: Message = environ[RAW_HEADERS]
    headers: dict[str, str] = {}
    for name, value in message.items():
        key = name.lower()
        headers[key] = f"{headers[key]},{value}" if key in headers else value
    path, _, query = environ["REQUEST_URI"].partition("?")
    return Request(method=environ["REQUEST_METHOD"], path=path, query=query, headers=headers, body=body)


def _refuse(error: SignatureError, request: Request, start_response: StartResponse) -> Iterable[bytes]:
    """Say no in the language of the caller: the JSON protocol, the query protocol's XML, or S3's."""
    if "x-amz-target" in request.headers:
        kind = "application/x-amz-json-1.1"
        text = json.dumps({"__type": error.code, "message": str(error)})
    else:
        kind = "application/xml"
        text = f"<Error><Code>{escape(error.code)}</Code><Message>{escape(str(error))}</Message></Error>"
        if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            text = f"<ErrorResponse>{text}</ErrorResponse>"
    content = text.encode()
    status = HTTPStatus.FORBIDDEN
    start_response(f"{status.value} {status.phrase}", [("Content-Type", kind), ("Content-Length", str(len(content)))])
    return [] if request.method == "HEAD" else [content]
