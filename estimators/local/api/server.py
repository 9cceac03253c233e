"""The HTTP server: the guard, behind it the training-job API, and behind that moto for every other AWS service.

Only this file imports moto, and it uses only the WSGI application of moto's server. IAM's GetRole finds a role of any
name, as a job takes any RoleArn: the SDK asks it for the role's ARN. No role's permissions are checked.
"""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import threading
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "1"  # moto reads it when it is imported

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import ThreadedWSGIServer

from estimators.local.api.bounded_server import BoundedHandler, BoundedServer
from estimators.local.api.front import DOCUMENT, OPERATION, AwsErrors, OfferedOperations, RequiredMembers, ask
from estimators.local.api.guard import RAW_HEADERS, Guard
from estimators.local.api.log_filter import LogFilter
from estimators.local.api.offered import S3
from estimators.local.api.operation import ApiOperation
from estimators.local.api.signature import KeyPair
from estimators.local.api.training_jobs import TrainingJobApi, TrainingJobs
from estimators.local.chaos import Chaos
from estimators.local.chaos.requests import meet
from estimators.local.engine import ApiError
from estimators.local.engine.hosted.logs import LOG_GROUPS
from estimators.service_model import service_model, violations

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


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
            engine, otherwise=_LogRecall(engine, LogFilter(_RolesByName(RequiredMembers(AwsErrors(moto))))), chaos=chaos
        )
        application = OfferedOperations(_FaultyRequests(jobs, chaos))
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


class _FaultyRequests:
    """A WSGI application behind an `OfferedOperations`, which turns the errors raised here into refusals."""

    def __init__(self, inner: WSGIApplication, chaos: Chaos) -> None:
        self._inner = inner
        self._chaos = chaos

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request; the platform's own operations meet no fault."""
        operation: ApiOperation = environ[OPERATION]
        if not operation.is_own:
            name = environ["REQUEST_METHOD"] if operation.service == S3 else operation.name
            refusal = meet(self._chaos, operation.service, name, environ.get("HTTP_USER_AGENT", ""))
            if refusal is not None:
                raise ApiError(refusal.code, refusal.message, refusal.status)
        return self._inner(environ, start_response)


_ABOUT_STREAMS = frozenset({"DescribeLogStreams", "GetLogEvents", "FilterLogEvents", "DeleteLogStream"})


class _LogRecall:
    """A WSGI application that restores the log streams of a request, then passes it on to ``inner``."""

    def __init__(self, engine: TrainingJobs, inner: WSGIApplication) -> None:
        self._engine = engine
        self._inner = inner

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request that `OfferedOperations` let through."""
        operation, document = environ[OPERATION], environ.get(DOCUMENT, {})
        group = document.get("logGroupName")
        if operation.service == "logs" and group in LOG_GROUPS:
            if operation.name in _ABOUT_STREAMS:
                for streams in _streams(document):
                    self._engine.bring_logs(group, streams)
            if operation.name == "DeleteLogStream":
                self._engine.forget_logs(group, _text(document.get("logStreamName")))
            elif operation.name == "DeleteLogGroup":
                self._engine.forget_logs(group, None)
        return self._inner(environ, start_response)


def _streams(document: Mapping[str, Any]) -> Iterable[str]:
    """Return the name prefixes of the streams that a request is about; ``""`` if it may be about any."""
    names = document.get("logStreamNames") or [document.get("logStreamName") or document.get("logStreamNamePrefix")]
    return [name if isinstance(name, str) else "" for name in names] if isinstance(names, list) else [""]


def _text(name: object) -> str:
    """Return a stream's name; an empty text, the name of no stream, for an invalid one."""
    return name if isinstance(name, str) and name.isprintable() else ""


_TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


class _RolesByName:
    """A WSGI application that creates a role in `inner` at its first GetRole, unless it has been deleted."""

    def __init__(self, inner: WSGIApplication) -> None:
        self._inner = inner
        self._deleted: set[str] = set()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request that `OfferedOperations` let through."""
        operation: ApiOperation = environ[OPERATION]
        if operation.service != "iam" or operation.name not in ("GetRole", "DeleteRole"):
            return self._inner(environ, start_response)
        form = environ["wsgi.input"].read()
        name = parse_qs(form.decode("latin-1")).get("RoleName", [""])[0]
        status, headers, content = self._ask(environ, form)
        if operation.name == "DeleteRole":
            self._deleted.add(name)
        elif status.startswith("404") and name not in self._deleted and _is_name(name):
            asked = {
                "Action": "CreateRole",
                "RoleName": name,
                "AssumeRolePolicyDocument": json.dumps(_TRUST),
                "Version": "2010-05-08",
            }
            if self._ask(environ, urlencode(asked).encode())[0].startswith("200"):
                logger.info("made the IAM role %s, which a job is to have", name)
            status, headers, content = self._ask(environ, form)
        start_response(status, headers)
        return [content]

    def _ask(self, environ: WSGIEnvironment, form: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
        return ask(self._inner, {**environ, "CONTENT_LENGTH": str(len(form)), "wsgi.input": io.BytesIO(form)})


def _is_name(text: str) -> bool:
    """Return whether IAM allows this name of a role."""
    shape = service_model("iam").operation_model("CreateRole").input_shape
    assert shape is not None
    return not any(violations(shape.members["RoleName"], text))
