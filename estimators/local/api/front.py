"""The applications in front of moto: only offered operations reach it, and only answers in AWS's form come back.

moto's server answers unknown requests and its own bugs with HTML pages, which clients can't read, and with statuses
that make clients try again.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from estimators.local.api.offered import S3, require_offered
from estimators.local.api.operation import ApiOperation, read_document, requested_operation
from estimators.local.api.refusal import SERVICE, refuse
from estimators.local.engine import ApiError
from estimators.local.engine.validation import PUT_METRICS
from estimators.service_model import service_model

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

logger = logging.getLogger(__name__)

OPERATION = "smddp.operation"
"""Environment key under which `OfferedOperations` puts the `ApiOperation`. Later applications use it, never a header
again."""
DOCUMENT = "smddp.document"
"""Environment key of the request's JSON document; absent if the request has none."""
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class OfferedOperations:
    """A WSGI application that refuses malformed requests and operations that the platform does not answer."""

    def __init__(self, inner: WSGIApplication) -> None:
        self._inner = inner

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        try:
            _examine(environ)
            return self._inner(environ, start_response)
        except ApiError as error:
            return refuse(error, environ, start_response)
        except Exception as error:
            logger.exception("%s %s failed", environ["REQUEST_METHOD"], environ["PATH_INFO"])
            failure = ApiError("InternalFailure", f"{type(error).__name__}: {error}", 500)
            return refuse(failure, environ, start_response)


def _examine(environ: WSGIEnvironment) -> None:
    service, path = environ[SERVICE], environ["PATH_INFO"]
    if not path.startswith("/"):
        raise ApiError("InvalidURI", f"{path[:80]!r} is no path: it does not begin with a slash.")
    if service == S3:
        # In a presigned request, moto takes such a path for another service's.
        if "_" in path.split("/")[1]:
            raise ApiError("InvalidBucketName", "A bucket's name has no underscore.")
        if path.startswith("/v20180820/"):
            require_offered("s3-control", "An operation")
        if environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower() in _FORMS:
            # curl and urllib send these types with any body. moto's server would parse it as a form, and store an empty
            # object.
            environ["CONTENT_TYPE"] = "binary/octet-stream"
    try:
        operation: ApiOperation = requested_operation(environ, service)
    except ValueError:
        raise ApiError("MalformedInput", "The form in the request's body can't be read.") from None
    environ[OPERATION] = operation
    environ["wsgi.input"].seek(0)
    if not operation.is_own:
        require_offered(service, operation.name)
    if environ.get("HTTP_X_AMZ_TARGET") or operation.name == PUT_METRICS:
        environ[DOCUMENT] = read_document(environ)
        environ["wsgi.input"].seek(0)


class AwsErrors:
    """A WSGI application that turns failures of `inner` into refusals in AWS's form, which no client retries."""

    def __init__(self, inner: WSGIApplication) -> None:
        self._inner = inner

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        answered: list[tuple[Any, ...]] = []

        def keep(*status_and_headers: Any) -> Any:
            answered[:] = [status_and_headers]
            return io.BytesIO().write  # WSGI's old write(), which nobody calls

        try:
            answer = self._inner(environ, keep)
            status = int(answered[0][0].split()[0])
            if status >= 400:
                content = _read(answer)
                if status >= 500 or content.lstrip()[:5].lower() in (b"<!doc", b"<html"):
                    raise _UnansweredError(answered[0][0])
                answer = [content]
        except Exception as error:
            name = environ[OPERATION].name
            logger.warning("moto can't answer %s", name, exc_info=not isinstance(error, _UnansweredError))
            message = f"The local platform can't answer this {name}: {type(error).__name__}: {error}"
            return refuse(ApiError("ValidationException", message[:1000]), environ, start_response)
        start_response(*answered[0])
        return answer


class RequiredMembers:
    """A WSGI application that adds the structures required by botocore's model to SageMaker's answers from `inner`."""

    def __init__(self, inner: WSGIApplication) -> None:
        self._inner = inner

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request that `OfferedOperations` let through."""
        operation: ApiOperation = environ[OPERATION]
        shape = operation.is_sagemakers and service_model().operation_model(operation.name).output_shape
        if not shape:
            return self._inner(environ, start_response)
        status, headers, content = ask(self._inner, environ)
        if status.startswith("200"):
            content = json.dumps(_complete(shape, json.loads(content))).encode()
            others = [(name, value) for name, value in headers if name.lower() != "content-length"]
            headers = [*others, ("Content-Length", str(len(content)))]
        start_response(status, headers)
        return [content]


def _complete(shape: Any, value: Any) -> Any:
    """Return a value with its missing required structures, and without empty structures that must not be empty."""
    if shape.type_name == "list" and isinstance(value, list):
        return [_complete(shape.member, item) for item in value]
    if shape.type_name != "structure" or not isinstance(value, dict):
        return value
    known, required = shape.members, shape.required_members
    empty: dict[str, Any] = {
        name: {} for name in required if known[name].type_name == "structure" and not known[name].required_members
    }
    return {
        **empty,
        **{
            name: _complete(known[name], item) if name in known else item
            for name, item in value.items()
            if item != {} or name in required or not getattr(known.get(name), "required_members", ())
        },
    }


def ask(inner: WSGIApplication, environ: WSGIEnvironment) -> tuple[str, list[tuple[str, str]], bytes]:
    """Return the status, the headers and the whole body of an application's answer."""
    head: list[Any] = []

    def keep(*status_and_headers: Any) -> Any:
        head[:] = status_and_headers
        return io.BytesIO().write  # WSGI's old write(), which nobody calls

    content = _read(inner(environ, keep))
    return head[0], head[1], content


def _read(answer: Iterable[bytes]) -> bytes:
    """Return an application's whole answer and close it, as WSGI demands of its consumer."""
    try:
        return b"".join(answer)
    finally:
        if close := getattr(answer, "close", None):
            close()


class _UnansweredError(Exception):
    """moto answered with an HTML page or a server error."""
