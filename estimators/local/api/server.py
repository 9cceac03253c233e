"""The HTTP server: the training-job API in front of moto, which plays every other AWS service, behind the guard.

The only file that imports moto. It leans on nothing of moto but its server's WSGI application.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "1"  # moto reads it when it is imported

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

from estimators.local.api.guard import RAW_HEADERS, Guard
from estimators.local.api.signature import KeyPair
from estimators.local.api.training_jobs import TrainingJobApi, TrainingJobs

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

logger = logging.getLogger(__name__)


class _RequestHandler(MotoRequestHandler):  # type: ignore[misc]
    """Hands the headers on as they came, for the signature, and logs requests only when asked to."""

    def make_environ(self) -> WSGIEnvironment:
        environ: WSGIEnvironment = super().make_environ()
        environ[RAW_HEADERS] = self.headers
        return environ

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:  # noqa: ARG002
        logger.debug("%s %s %s", self.command, self.path, code)


class HttpServer:
    """Serves on a socket that is bound already, in threads of its own, until it is closed."""

    def __init__(self, listener: socket.socket, *, engine: TrainingJobs, keys: KeyPair) -> None:
        host, port = listener.getsockname()
        moto: Any = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            host,
            port,
            Guard(TrainingJobApi(engine, otherwise=moto), keys=keys, address=(host, port)),
            threaded=True,
            request_handler=_RequestHandler,
            fd=listener.fileno(),
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="http-server", daemon=True
        )

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering; requests in progress are abandoned."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
