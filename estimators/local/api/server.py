"""The HTTP server: the guard, behind it the training-job API, and behind that moto for every other AWS service.

Only this file imports moto, and it uses only the WSGI application of moto's server.
"""

from __future__ import annotations

import io
import logging
import os
import socket
import threading
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "1"  # moto reads it when it is imported

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import ThreadedWSGIServer

from estimators.local.api.bounded_server import BoundedHandler, BoundedServer
from estimators.local.api.faulty_requests import FaultyRequests
from estimators.local.api.front import AwsErrors, OfferedOperations, RequiredMembers
from estimators.local.api.guard import RAW_HEADERS, Guard
from estimators.local.api.log_filter import LogFilter
from estimators.local.api.log_recall import LogRecall
from estimators.local.api.roles import RolesByName
from estimators.local.api.signature import KeyPair
from estimators.local.api.training_jobs import TrainingJobApi, TrainingJobs
from estimators.local.chaos import Chaos

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

logger = logging.getLogger(__name__)

_REST_BYTES = 64 << 10


class _Server(BoundedServer, ThreadedWSGIServer):
    """werkzeug's server, within bounds."""


class _RequestHandler(BoundedHandler, MotoRequestHandler):  # type: ignore[misc]
    """Keeps the raw headers for the signature, and logs requests at debug level only."""

    def parse_request(self) -> bool:
        """Read the headers; refuse a target that is no URL, because werkzeug could not parse it later."""
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
        environ[RAW_HEADERS] = self.headers
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


class HttpServer:
    """An HTTP server on a socket that is already bound, in its own threads, until it is closed."""

    def __init__(
        self, listener: socket.socket, *, engine: TrainingJobs, keys: KeyPair, body_directory: Path, chaos: Chaos
    ) -> None:
        """Prepare a server; large bodies stay in ``body_directory`` until their signature is checked."""
        host, port = listener.getsockname()
        moto: Any = DomainDispatcherApplication(create_backend_app)
        jobs = TrainingJobApi(
            engine, otherwise=LogRecall(engine, LogFilter(RolesByName(RequiredMembers(AwsErrors(moto))))), chaos=chaos
        )
        application = OfferedOperations(FaultyRequests(jobs, chaos))
        guard = Guard(application, keys=keys, address=(host, port), body_directory=body_directory)
        self._server = _Server(host, port, guard, _RequestHandler, fd=listener.fileno())
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
