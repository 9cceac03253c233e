"""SageMaker's JSON protocol over HTTP, as a thin skin on the engine: text in, text out, and nothing decided.

What the engine does not answer (other operations, other services) goes on to the next application.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from estimators.local.api.guard import REGION
from estimators.local.engine import ApiError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

logger = logging.getLogger(__name__)

SERVICE = "SageMaker"
OWN_SERVICE = "SmddpLocal"
INTERRUPT = "InterruptTrainingJob"
"""Our own operation, beside AWS's: a spot instance of the job is reclaimed."""

_TAGGING = frozenset({"AddTags", "ListTags", "DeleteTags"})


class TrainingJobs(Protocol):
    """What the API needs of the engine."""

    @property
    def operations(self) -> frozenset[str]:
        """Names of the operations that `call` answers."""

    def call(self, operation: str, request: dict[str, Any], *, region: str) -> dict[str, Any]:
        """Answer one operation."""

    def interrupt(self, job_name: str) -> None:
        """Reclaim the job's spot instances."""


class TrainingJobApi:
    """A WSGI application: the engine's operations here, everything else to `otherwise`."""

    def __init__(self, engine: TrainingJobs, otherwise: WSGIApplication) -> None:
        self._engine = engine
        self._otherwise = otherwise

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        service, _, operation = environ.get("HTTP_X_AMZ_TARGET", "").partition(".")
        if service not in (SERVICE, OWN_SERVICE):
            return self._otherwise(environ, start_response)
        try:
            request = json.loads(environ["wsgi.input"].read() or b"{}")
        except ValueError:
            request = None
        if not isinstance(request, dict):
            return _answer(start_response, ApiError("SerializationException", "The body is not a JSON object.", 400))
        handle = self._handler(service, operation, request, environ[REGION])
        if handle is None:
            environ["wsgi.input"].seek(0)
            return self._otherwise(environ, start_response)
        try:
            return _answer(start_response, handle())
        except ApiError as error:
            return _answer(start_response, error)
        except Exception as error:
            logger.exception("%s failed", operation)
            return _answer(start_response, ApiError("InternalFailure", f"{type(error).__name__}: {error}", 500))

    def _handler(
        self, service: str, operation: str, request: dict[str, Any], region: str
    ) -> Callable[[], dict[str, Any]] | None:
        """What answers the request; None if it is not about training jobs."""
        if service == OWN_SERVICE and operation == INTERRUPT:
            return partial(self._interrupt, request)
        if service == SERVICE and operation in self._engine.operations and _is_about_training_jobs(operation, request):
            return partial(self._engine.call, operation, request, region=region)
        return None

    def _interrupt(self, request: dict[str, Any]) -> dict[str, Any]:
        self._engine.interrupt(str(request.get("TrainingJobName")))
        return {}


def _is_about_training_jobs(operation: str, request: Mapping[str, Any]) -> bool:
    """Tags and Search serve every kind of resource; the engine knows only one."""
    if operation in _TAGGING:
        return ":training-job/" in str(request.get("ResourceArn"))
    return operation != "Search" or request.get("Resource") == "TrainingJob"


def _answer(start_response: StartResponse, outcome: dict[str, Any] | ApiError) -> Iterable[bytes]:
    if isinstance(outcome, ApiError):
        status = HTTPStatus(outcome.status)
        document: dict[str, Any] = {"__type": outcome.code, "message": outcome.message}
    else:
        status, document = HTTPStatus.OK, outcome
    content = json.dumps(document, default=_epoch_seconds).encode()
    headers = [
        ("Content-Type", "application/x-amz-json-1.1"),
        ("Content-Length", str(len(content))),
        ("x-amzn-RequestId", str(uuid.uuid4())),
    ]
    start_response(f"{status.value} {status.phrase}", headers)
    return [content]


def _epoch_seconds(value: object) -> float:
    """The JSON protocol's form of a time: seconds since 1970, to the millisecond."""
    if isinstance(value, datetime):
        return round(value.timestamp(), 3)
    raise TypeError(f"{type(value).__name__} has no form in the JSON protocol")
