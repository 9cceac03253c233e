"""The gate in front of the whole server: it decides who may send requests at all.

The server runs the code that it is sent, so it must obey only programs that have its keys: no web page (a foreign
Origin, a rebound Host), no other user of the machine. A refused request has no effect behind the gate.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from werkzeug.wsgi import ClosingIterator

from estimators.local.api.refusal import SERVICE, refuse
from estimators.local.api.request_body import MAX_DOCUMENT_BYTES, MAX_OBJECT_BYTES, RequestBody
from estimators.local.api.signature import KeyPair, Request, SignatureError, claimed_service, verify
from estimators.local.engine import ApiError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

logger = logging.getLogger(__name__)

RAW_HEADERS = "smddp.headers"
"""Environment key of the headers as they came; WSGI itself folds their names."""

REGION = "smddp.region"
"""Environment key of the region that a request is signed for."""

_CLOSED_PATHS = ("/moto-api", "/latest/meta-data", "/latest/api", "/favicon.ico")
"""moto's own paths: they reset the server's state, or hand out credentials."""


class Guard:
    """A WSGI application that passes only requests signed for this very server on to `inner`."""

    def __init__(
        self, inner: WSGIApplication, *, keys: KeyPair, address: tuple[str, int], body_directory: Path
    ) -> None:
        self._inner = inner
        self._keys = keys
        self._body_directory = body_directory
        host, port = address
        names = {host, "localhost"} if host == "127.0.0.1" else {host}
        self._hosts = frozenset(f"{name}:{port}" for name in names)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        head = _head(environ)
        service = environ[SERVICE] = claimed_service(head)
        limit = MAX_OBJECT_BYTES if service == "s3" else MAX_DOCUMENT_BYTES
        body = RequestBody(environ, limit=limit, directory=self._body_directory)
        try:
            self._check_address(head, environ["PATH_INFO"])
            # The body is read only after the access key is checked; a large one stays on disk until the signature is
            # checked.
            environ[REGION] = verify(replace(head, body_sha256=body.sha256), self._keys).region
            environ["wsgi.input"] = body.read()
            environ["CONTENT_LENGTH"] = str(body.size)
            environ.pop("HTTP_TRANSFER_ENCODING", None)
            answer = self._inner(environ, start_response)
        except BaseException as error:
            body.close()
            if isinstance(error, SignatureError | ApiError):
                return _refuse(error, environ, start_response)
            raise
        return ClosingIterator(answer, body.close)

    def _check_address(self, request: Request, path: str) -> None:
        if "origin" in request.headers:
            raise SignatureError("AccessDenied", "Requests from web pages are refused.")
        if request.headers.get("host") not in self._hosts:
            raise SignatureError("AccessDenied", f"This server answers to {' and '.join(sorted(self._hosts))} only.")
        if path.startswith(_CLOSED_PATHS):
            raise SignatureError("AccessDenied", "There is nothing at this path.")


def _head(environ: WSGIEnvironment) -> Request:
    """Return the request without its body."""
    message: Message = environ[RAW_HEADERS]
    headers: dict[str, str] = {}
    for name, value in message.items():
        key = name.lower()
        headers[key] = f"{headers[key]},{value}" if key in headers else value
    path, _, query = environ["REQUEST_URI"].partition("?")
    return Request(method=environ["REQUEST_METHOD"], path=path, query=query, headers=headers, body_sha256=str)


def _refuse(
    error: SignatureError | ApiError, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    logger.warning("refused %s %s: %s: %s", environ["REQUEST_METHOD"], environ["PATH_INFO"], error.code, error)
    if isinstance(error, SignatureError):
        error = ApiError(error.code, str(error), HTTPStatus.FORBIDDEN)
    return refuse(error, environ, start_response)
