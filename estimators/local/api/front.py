"""What stands before moto: only what is offered gets to it, and only answers in AWS's form come back.

moto's server answers what it does not know, and its own bugs, with pages of HTML, which clients can't read, and with
statuses that they take for a reason to try again.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from estimators.local.api.offered import S3, require_offered
from estimators.local.api.operation import OWN_SERVICE, operation_name, read_document
from estimators.local.api.refusal import SERVICE, refuse
from estimators.local.engine import ApiError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

logger = logging.getLogger(__name__)

OPERATION = "smddp.operation"
"""Where an `OfferedOperations` puts the name of the operation."""
DOCUMENT = "smddp.document"
"""Where it puts the request's JSON document, if it has one."""


class OfferedOperations:
    """A WSGI application that refuses what the platform does not answer, and requests that say nothing."""

    def __init__(self, inner: WSGIApplication) -> None:
        self._inner = inner

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        try:
            _examine(environ)
        except ApiError as error:
            return refuse(error, environ, start_response)
        return self._inner(environ, start_response)


def _examine(environ: WSGIEnvironment) -> None:
    service = environ[SERVICE]
    if service == S3:
        # moto takes such a path for another service's, where the request is signed in its query.
        if "_" in environ["PATH_INFO"].split("/")[1]:
            raise ApiError("InvalidBucketName", "A bucket's name has no underscore.")
        if environ["PATH_INFO"].startswith("/v20180820/"):
            require_offered("s3-control", "An operation")
        return
    try:
        environ[OPERATION] = operation_name(environ, service)
    except ValueError:
        raise ApiError("MalformedInput", "The form in the request's body can't be read.") from None
    environ["wsgi.input"].seek(0)
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if not target.startswith(f"{OWN_SERVICE}."):
        require_offered(service, environ[OPERATION])
    if target:
        environ[DOCUMENT] = read_document(environ)
        environ["wsgi.input"].seek(0)


class AwsErrors:
    """A WSGI application that refuses in AWS's form what `inner` can't answer; no client tries that again."""

    def __init__(self, inner: WSGIApplication) -> None:
        self._inner = inner

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        answered: list[tuple[Any, ...]] = []

        def keep(*status_and_headers: Any) -> Any:
            answered[:] = [status_and_headers]
            return io.BytesIO().write  # nobody writes in this way any more

        try:
            answer = self._inner(environ, keep)
            status = int(answered[0][0].split()[0])
            if status >= 400:
                content = b"".join(answer)
                if status >= 500 or content.lstrip()[:5].lower() in (b"<!doc", b"<html"):
                    raise _UnansweredError(answered[0][0])
                answer = [content]
        except Exception as error:
            name = environ.get(OPERATION, f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
            logger.warning("moto can't answer %s", name, exc_info=not isinstance(error, _UnansweredError))
            message = f"The local platform can't answer this {name}: {type(error).__name__}: {error}"
            return refuse(ApiError("ValidationException", message[:1000]), environ, start_response)
        start_response(*answered[0])
        return answer


class _UnansweredError(Exception):
    """moto answered with a page for people."""
