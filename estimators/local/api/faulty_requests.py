"""Apply the faults that are set to requests to the API, behind the guard and before any work is done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from estimators.local.api.front import OPERATION
from estimators.local.api.offered import S3
from estimators.local.api.operation import ApiOperation
from estimators.local.chaos.chaos import Chaos
from estimators.local.chaos.requests import meet
from estimators.local.engine import ApiError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


class FaultyRequests:
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
