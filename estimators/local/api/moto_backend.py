"""moto, which answers what the engine does not: asked in WSGI, its answers completed and in AWS's form.

Only this file imports moto, and it uses only the WSGI application of moto's server. That answers unknown requests and
its own bugs with HTML pages, which clients can't read, and with statuses that make clients try again.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "1"  # moto reads it when it is imported

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.moto_server.werkzeug_app import MotoRequestHandler as MotoRequestHandler  # for the server

from estimators.local.api.offered import S3
from estimators.local.api.protocols import Answer, ApiRequest
from estimators.local.engine import ApiError
from estimators.service_model import service_model, violations

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

logger = logging.getLogger(__name__)

_UPLOAD = re.compile(rb"<Upload>.*?</Upload>", re.DOTALL)
_UPLOAD_ID = re.compile(rb"<UploadId>([^<]+)</UploadId>")
_INITIATED = re.compile(rb"<Initiated>[^<]*</Initiated>")


def moto_application() -> WSGIApplication:
    """Return moto's server, as an application with records of its own."""
    application: WSGIApplication = DomainDispatcherApplication(create_backend_app)
    return application


class MotoBackend:
    """Answers requests by moto's application."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application
        self._uploads = _UploadTimes()

    def __call__(self, request: ApiRequest) -> Answer:
        """Answer a request; raise ApiError, which no client retries, if moto can't."""
        try:
            answer = self._ask(request)
            if answer.code >= 500 or (
                answer.code >= 400 and answer.content.lstrip()[:5].lower() in (b"<!doc", b"<html")
            ):
                raise _UnansweredError(answer.status)
        except Exception as error:
            logger.warning("moto can't answer %s", request.operation, exc_info=not isinstance(error, _UnansweredError))
            message = f"The local platform can't answer this {request.operation}: {type(error).__name__}: {error}"
            raise ApiError("ValidationException", message[:1000]) from error
        if request.service == S3:
            return self._uploads.dated(request, answer)
        return _with_required_members(request, answer)

    def _ask(self, request: ApiRequest) -> Answer:
        head: list[Any] = []

        def keep(*status_and_headers: Any) -> Any:
            head[:] = status_and_headers
            return io.BytesIO().write  # WSGI's old write(), which nobody calls

        request.environ["wsgi.input"].seek(0)
        pieces = self._application({**request.environ}, keep)  # a copy, because moto writes into it
        try:
            content = b"".join(pieces)
        finally:
            if close := getattr(pieces, "close", None):  # WSGI demands it of its consumer
                close()
        return Answer(status=head[0], headers=head[1], content=content)


class _UnansweredError(Exception):
    """moto answered with an HTML page or a server error."""


def _with_required_members(request: ApiRequest, answer: Answer) -> Answer:
    """Add the structures that botocore's model requires to an answer of SageMaker."""
    shape = request.is_sagemakers and service_model().operation_model(request.operation).output_shape
    if not shape or answer.code != 200:
        return answer
    return _with_content(answer, json.dumps(_complete(shape, json.loads(answer.content))).encode())


def _with_content(answer: Answer, content: bytes) -> Answer:
    others = [(name, value) for name, value in answer.headers if name.lower() != "content-length"]
    return replace(answer, headers=[*others, ("Content-Length", str(len(content)))], content=content)


class _UploadTimes:
    """When each unfinished multipart upload began. moto says 2010 of all, and clients abort uploads that old."""

    def __init__(self) -> None:
        self._began: dict[bytes, bytes] = {}

    def dated(self, request: ApiRequest, answer: Answer) -> Answer:
        """Return S3's answer, with the time of each upload if it lists them; note uploads that begin and end."""
        method, query = request.environ["REQUEST_METHOD"], parse_qs(request.environ["QUERY_STRING"], True)
        if answer.code >= 300:
            return answer
        if method == "POST" and "uploads" in query and (begun := _UPLOAD_ID.search(answer.content)):
            self._began[begun[1]] = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S.000Z}".encode()
        elif method in ("POST", "DELETE") and "uploadId" in query:
            self._began.pop(query["uploadId"][0].encode(), None)
        elif method == "GET" and "uploads" in query:
            return _with_content(answer, _UPLOAD.sub(self._date, answer.content))
        return answer

    def _date(self, upload: re.Match[bytes]) -> bytes:
        found = _UPLOAD_ID.search(upload[0])
        began = self._began.get(found[1]) if found is not None else None
        return upload[0] if began is None else _INITIATED.sub(b"<Initiated>%s</Initiated>" % began, upload[0])


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


_TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


class RolesByName:
    """Answers GetRole and DeleteRole by `moto`, and creates a role at its first GetRole, unless it has been deleted.

    A job takes any RoleArn, and the SDK asks for the ARN of a role by its name. No role's permissions are checked.
    """

    def __init__(self, moto: Callable[[ApiRequest], Answer]) -> None:
        self._moto = moto
        self._deleted: set[str] = set()

    def answers(self, request: ApiRequest) -> bool:
        """Return whether a request is a GetRole or DeleteRole."""
        return request.service == "iam" and request.operation in ("GetRole", "DeleteRole")

    def __call__(self, request: ApiRequest) -> Answer:
        """Answer a request that it `answers`."""
        answer = self._moto(request)
        body = request.environ["wsgi.input"]
        body.seek(0)
        name = parse_qs(body.read().decode("latin-1")).get("RoleName", [""])[0]
        if request.operation == "DeleteRole":
            self._deleted.add(name)
        elif answer.code == 404 and name not in self._deleted and _is_name(name):
            asked = {
                "Action": "CreateRole",
                "RoleName": name,
                "AssumeRolePolicyDocument": json.dumps(_TRUST),
                "Version": "2010-05-08",
            }
            if self._moto(request.asking("CreateRole", form=asked)).code == 200:
                logger.info("made the IAM role %s, which a job is to have", name)
            answer = self._moto(request)
        return answer


def _is_name(text: str) -> bool:
    """Return whether IAM allows this name of a role."""
    shape = service_model("iam").operation_model("CreateRole").input_shape
    assert shape is not None
    return not any(violations(shape.members["RoleName"], text))
