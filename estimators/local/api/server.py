"""The HTTP server of the API, and what each request passes in it, in order: `Api`.

A request comes from the bounded server as WSGI has it, becomes an `ApiRequest` behind the guard, and is answered by the
engine or by moto.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
from collections.abc import Iterable
from contextlib import closing
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from werkzeug.serving import ThreadedWSGIServer

from estimators.local.api.bounded_server import BoundedHandler, BoundedServer
from estimators.local.api.engine_api import TrainingJobApi, TrainingJobs
from estimators.local.api.guard import Guard, RequestBody
from estimators.local.api.logs import LogFilter, restore_streams
from estimators.local.api.moto_backend import MotoBackend, MotoRequestHandler, RolesByName, moto_application
from estimators.local.api.offered import S3
from estimators.local.api.protocols import Answer, ApiRequest, refusal
from estimators.local.api.signature import KeyPair, Request, claimed_service
from estimators.local.chaos import Chaos
from estimators.local.chaos.chaos import meet_request_faults
from estimators.local.engine import ApiError
from estimators.local.engine.validation import check_request

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

logger = logging.getLogger(__name__)

HEAD = "smddp.head"
"""Environment key of the `Request` as it came over the wire; WSGI itself folds the names of headers."""
_REST_BYTES = 64 << 10


class HttpServer:
    """An HTTP server on a socket that is already bound, in its own threads, until it is closed."""

    def __init__(
        self, listener: socket.socket, *, engine: TrainingJobs, keys: KeyPair, body_directory: Path, chaos: Chaos
    ) -> None:
        """Prepare a server; large bodies stay in ``body_directory`` until their signature is checked."""
        host, port = listener.getsockname()
        guard = Guard(keys=keys, address=(host, port))
        api = Api(guard, engine=engine, moto=moto_application(), chaos=chaos, body_directory=body_directory)
        self._server = _Server(host, port, api, _RequestHandler, fd=listener.fileno())
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="http-server", daemon=True
        )

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering; abandon requests in progress."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Api:
    """The WSGI application of the API: all that a request passes, in order. Each step may refuse it by an ApiError."""

    def __init__(
        self, guard: Guard, *, engine: TrainingJobs, moto: WSGIApplication, chaos: Chaos, body_directory: Path
    ) -> None:
        self._guard = guard
        self._engine = engine
        self._chaos = chaos
        self._body_directory = body_directory
        self._jobs = TrainingJobApi(engine, chaos)
        self._moto = MotoBackend(moto)
        self._log_filter = LogFilter(self._moto)
        self._roles = RolesByName(self._moto)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request, in AWS's form whatever happens."""
        head: Request = environ[HEAD]
        service = claimed_service(head)
        try:
            with closing(RequestBody(environ, service=service, directory=self._body_directory)) as body:
                region = self._guard.admit(head, environ["PATH_INFO"], body)
                answer = self._answer(ApiRequest.read(_with_body(environ, body), service=service, region=region))
        except ApiError as error:
            answer = refusal(error, environ, service)
        except Exception as error:
            logger.exception("%s %s failed", head.method, environ["PATH_INFO"])
            failure = ApiError("InternalFailure", f"{type(error).__name__}: {error}", 500)
            answer = refusal(failure, environ, service)
        start_response(answer.status, answer.headers)
        return [answer.content]

    def _answer(self, request: ApiRequest) -> Answer:
        """Answer a request by the first that can: the engine, the log filter, the roles, and moto for all others."""
        self._meet_faults(request)
        if self._jobs.answers(request):
            return self._jobs(request)
        if request.is_sagemakers:
            check_request(request.operation, request.document)
        restore_streams(self._engine, request)
        if self._log_filter.answers(request):
            return self._log_filter(request)
        if self._roles.answers(request):
            return self._roles(request)
        return self._moto(request)

    def _meet_faults(self, request: ApiRequest) -> None:
        """Delay or refuse a request as the faults that are set say; the platform's own operations meet none."""
        if request.is_own:
            return
        name = request.environ["REQUEST_METHOD"] if request.service == S3 else request.operation
        error = meet_request_faults(self._chaos, request.service, name, request.environ.get("HTTP_USER_AGENT", ""))
        if error is not None:
            raise ApiError(error.code, error.message, error.status)


def _with_body(environ: WSGIEnvironment, body: RequestBody) -> WSGIEnvironment:
    """Return a request with its body as a file of a known length, however it came."""
    whole = {**environ, "wsgi.input": body.read(), "CONTENT_LENGTH": str(body.size)}
    whole.pop("HTTP_TRANSFER_ENCODING", None)
    return whole


class _Server(BoundedServer, ThreadedWSGIServer):
    """werkzeug's server, within bounds."""


class _RequestHandler(BoundedHandler, MotoRequestHandler):  # type: ignore[misc]
    """Keeps the head of a request for its signature, and logs requests at debug level only."""

    def parse_request(self) -> bool:
        """Read the headers; refuse a target that is not a URL, because werkzeug could not parse it later."""
        if not super().parse_request():
            return False
        try:
            urlsplit(self.path)
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST, "The target of the request is no URL.")
            return False
        return True

    def make_environ(self) -> WSGIEnvironment:
        environ: WSGIEnvironment = super().make_environ()
        environ[HEAD] = _head(self.command, self.path, self.headers)
        self.rfile = _Rest(self.rfile)  # werkzeug reads it when the request is answered
        return environ

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:  # noqa: ARG002
        logger.debug("%s %s %s", self.command, self.path, code)


class _Rest(io.BufferedIOBase):
    """Bytes that a client sends after it has been answered: read, so that the client sees the answer, and dropped.

    werkzeug reads a thousand times 10 MB; small pieces keep a refused body from filling the memory.
    """

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream = stream

    def read(self, size: int | None = -1, /) -> bytes:  # noqa: ARG002
        try:
            return self._stream.read1(_REST_BYTES)
        except (ConnectionError, TimeoutError):
            return b""

    def close(self) -> None:
        self._stream.close()


def _head(method: str, target: str, message: Message) -> Request:
    """Return a request without its body."""
    headers: dict[str, str] = {}
    for name, value in message.items():
        key = name.lower()
        headers[key] = f"{headers[key]},{value}" if key in headers else value
    path, _, query = target.partition("?")
    return Request(method=method, path=path, query=query, headers=headers, body_sha256=str)
