"""AWS's protocols: a request that the guard let through, read from one, and its answer, written in the caller's.

An answer is a JSON document, or a refusal in AWS's form of an error.
"""

from __future__ import annotations

import io
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qs, urlencode
from xml.sax.saxutils import escape

from estimators.local.api.offered import S3, require_offered
from estimators.local.engine import ApiError
from estimators.local.engine.validation import PUT_METRICS
from estimators.service_model import service_model

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

OWN_SERVICE = "SmddpLocal"
"""Prefix of our own operations, which AWS does not have."""
MAX_DEPTH = 100
"""Limit of a JSON document's nesting. SageMaker's deepest, a search expression, needs a tenth of it."""

_TARGETS = {
    "sagemaker": ("SageMaker", OWN_SERVICE),
    "logs": ("Logs_20140328",),
    "monitoring": ("GraniteServiceVersion20100801",),
    S3: (),
}
"""Prefixes of X-Amz-Target for each service here with a JSON protocol, and none for S3."""
_CBOR_PATH = re.compile(r"/service/\w+/operation/(\w+)")
_REST_PATHS = (
    (re.compile(r"/BatchPutMetrics"), PUT_METRICS),
    (re.compile(r"/endpoints/[^/]+/(async-)?invocations"), "InvokeEndpoint"),
    (re.compile(r"/FeatureGroup.*"), "FeatureStore"),
)
"""Operations of SageMaker's companion services, which speak REST."""
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")

_XML_SERVICES = frozenset({"", S3, "cloudfront", "route53"})
"""REST services that speak XML. A request signed for no service gets S3's form."""


@dataclass(kw_only=True, slots=True, frozen=True)
class ApiRequest:
    """A well-formed request for an operation that the platform answers, signed with its keys."""

    service: str
    """AWS's signing name of the operation's service, or `OWN_SERVICE`."""
    region: str
    """The region that the request is signed for."""
    operation: str
    """AWS's name of the operation; the request's method and path if it names none, as for S3."""
    document: Mapping[str, Any]
    """The JSON document in its body; empty if the request has none."""
    environ: WSGIEnvironment
    """The request as moto's WSGI application takes it. ``wsgi.input``, the body, is seekable."""

    @classmethod
    def read(cls, environ: WSGIEnvironment, *, service: str, region: str) -> ApiRequest:
        """Return a request signed for a service; raise ApiError if it is malformed, or not offered."""
        path = environ["PATH_INFO"]
        if not path.startswith("/"):
            raise ApiError("InvalidURI", f"{path[:80]!r} is no path: it does not begin with a slash.")
        if service == S3:
            environ = _plain_s3(environ)
        body = environ["wsgi.input"]
        try:
            owner, operation = _requested_operation(environ, service)
        except ValueError:
            raise ApiError("MalformedInput", "The form in the request's body can't be read.") from None
        body.seek(0)
        if owner != OWN_SERVICE:
            require_offered(service, operation)
        document = {}
        if environ.get("HTTP_X_AMZ_TARGET") or operation == PUT_METRICS:
            document = _read_document(body.read())
            body.seek(0)
        return cls(service=owner, region=region, operation=operation, document=document, environ=environ)

    def asking(
        self, operation: str, *, document: Mapping[str, Any] | None = None, form: Mapping[str, str] | None = None
    ) -> ApiRequest:
        """Return another request of the same client to the same service, with a JSON document or a form."""
        content = urlencode(form).encode() if form is not None else json.dumps(document).encode()
        environ = {**self.environ, "CONTENT_LENGTH": str(len(content)), "wsgi.input": io.BytesIO(content)}
        if document is not None:
            prefix = self.environ["HTTP_X_AMZ_TARGET"].partition(".")[0]
            environ["HTTP_X_AMZ_TARGET"] = f"{prefix}.{operation}"
        return replace(self, operation=operation, document=document or {}, environ=environ)

    @property
    def is_own(self) -> bool:
        """Whether the operation is our own, unknown to AWS."""
        return self.service == OWN_SERVICE

    @property
    def is_sagemakers(self) -> bool:
        """Whether botocore's model of SageMaker or its metrics has the operation, whatever the request's protocol."""
        if self.service != "sagemaker":
            return False
        return self.operation == PUT_METRICS or self.operation in service_model().operation_names


def _plain_s3(environ: WSGIEnvironment) -> WSGIEnvironment:
    """Return a request to S3 that moto takes for one; raise ApiError if moto can't."""
    path = environ["PATH_INFO"]
    if "_" in path.split("/")[1]:  # in a presigned request, moto takes such a path for another service's
        raise ApiError("InvalidBucketName", "A bucket's name has no underscore.")
    if path.startswith("/v20180820/"):
        require_offered("s3-control", "An operation")
    if environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower() in _FORMS:
        # curl and urllib send these types with any body. moto's server would parse it as a form, and store an empty
        # object.
        return {**environ, "CONTENT_TYPE": "binary/octet-stream"}
    return environ


def _requested_operation(environ: WSGIEnvironment, service: str) -> tuple[str, str]:
    """Return the service and name of the operation that a request asks for; raise ApiError if it is another service's.

    Raise ValueError if the request is a form that can't be read.
    """
    target: str = environ.get("HTTP_X_AMZ_TARGET", "")
    if not target:
        return service, _name_without_target(environ, service)
    prefix, _, name = target.partition(".")
    if prefix not in _TARGETS.get(service, (prefix,)) or (prefix == OWN_SERVICE and service != "sagemaker"):
        raise ApiError("UnknownOperationException", f"{target[:80]!r} is not an operation of {service}.")
    if prefix == "SageMaker" and name not in service_model().operation_names:
        raise ApiError("UnknownOperationException", f"SageMaker has no operation {name[:80]!r}.")
    return OWN_SERVICE if prefix == OWN_SERVICE else service, name


def _name_without_target(environ: WSGIEnvironment, service: str) -> str:
    path: str = environ["PATH_INFO"]
    if service == S3:  # S3's body may be large, and never names an operation
        return _method_and_path(environ)
    if cbor := _CBOR_PATH.fullmatch(path):
        return cbor[1]
    is_form = environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded")
    form: bytes = environ["wsgi.input"].read() if is_form else environ.get("QUERY_STRING", "").encode()
    if action := parse_qs(form.decode("latin-1"), max_num_fields=10_000).get("Action"):
        return action[0]
    if service == "sagemaker":
        for pattern, name in _REST_PATHS:
            if pattern.fullmatch(path):
                return name
    return _method_and_path(environ)


def _method_and_path(environ: WSGIEnvironment) -> str:
    return f"{environ['REQUEST_METHOD']} {environ['PATH_INFO'][:80]}"


def _read_document(content: bytes) -> dict[str, Any]:
    """Return the JSON object in a body, empty without a body.

    Raise ApiError (SerializationException) if the body is not a JSON object, or is too deep.
    """
    try:
        document = json.loads(content or b"{}", parse_constant=_refuse_constant)
        json.dumps(document, ensure_ascii=False).encode()  # an unpaired surrogate is not text
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or _is_deeper(document, MAX_DEPTH):
        message = f"The body is not a JSON object, in UTF-8 and at most {MAX_DEPTH} levels deep."
        raise ApiError("SerializationException", message)
    return document


def _is_deeper(document: dict[str, Any], most: int) -> bool:
    level: list[Any] = [document]
    for _ in range(most):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]
    return bool(level)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


@dataclass(kw_only=True, slots=True, frozen=True)
class Answer:
    """An answer, whole."""

    status: str
    """The code and its phrase, such as ``200 OK``."""
    headers: list[tuple[str, str]]
    content: bytes

    @property
    def code(self) -> int:
        """The status code."""
        return int(self.status.split()[0])


def document_answer(document: Mapping[str, Any]) -> Answer:
    """Return a document in AWS's JSON protocol."""
    content = json.dumps(document, default=_epoch_seconds).encode()
    headers = [
        ("Content-Type", "application/x-amz-json-1.1"),
        ("Content-Length", str(len(content))),
        ("x-amzn-RequestId", str(uuid.uuid4())),
    ]
    return Answer(status="200 OK", headers=headers, content=content)


def _epoch_seconds(value: object) -> float:
    """Return a time in the JSON protocol's form: seconds since 1970, rounded to the millisecond."""
    if isinstance(value, datetime):
        return round(value.timestamp(), 3)
    raise TypeError(f"{type(value).__name__} has no form in the JSON protocol")


def refusal(error: ApiError, environ: WSGIEnvironment, service: str) -> Answer:
    """Return an error in the form of a request's protocol.

    ``service`` is AWS's signing name of the service that the request claims; "" if it claims none.
    """
    identifier = str(uuid.uuid4())
    kind, content = _error_document(error, environ, service, identifier)
    try:
        phrase = HTTPStatus(error.status).phrase
    except ValueError:
        phrase = "Error"
    headers = [
        ("Content-Type", kind),
        ("Content-Length", str(len(content))),
        ("x-amzn-RequestId", identifier),
        ("x-amzn-ErrorType", error.code),
    ]
    if kind == "application/cbor":
        headers.append(("smithy-protocol", "rpc-v2-cbor"))
    status = f"{error.status} {phrase}"
    return Answer(status=status, headers=headers, content=b"" if environ["REQUEST_METHOD"] == "HEAD" else content)


def _error_document(error: ApiError, environ: WSGIEnvironment, service: str, identifier: str) -> tuple[str, bytes]:
    fields = {"__type": error.code, "message": error.message}
    if "HTTP_SMITHY_PROTOCOL" in environ:
        return "application/cbor", _cbor(fields)
    if "HTTP_X_AMZ_TARGET" in environ:
        return "application/x-amz-json-1.1", json.dumps(fields).encode()
    # curl and urllib call any body that they send to S3 a form.
    is_form = service != S3 and environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded")
    if not is_form and service not in _XML_SERVICES:
        return "application/json", json.dumps(fields).encode()
    text = f"<Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message>"
    text = "".join(character if character.isprintable() or character == "\n" else "?" for character in text)
    if service == "ec2":
        text = f"<Response><Errors><Error>{text}</Error></Errors><RequestID>{identifier}</RequestID></Response>"
    elif is_form or service in ("cloudfront", "route53"):
        kind = "Receiver" if error.status >= 500 else "Sender"
        text = f"<Error><Type>{kind}</Type>{text}</Error>"
        text = f"<ErrorResponse>{text}<RequestId>{identifier}</RequestId></ErrorResponse>"
    else:
        text = f"<Error>{text}<RequestId>{identifier}</RequestId></Error>"
    return "application/xml", text.encode()


def _cbor(fields: dict[str, str]) -> bytes:
    """Return a map of texts in CBOR (RFC 8949)."""
    parts = [_cbor_head(5, len(fields))]
    for text in (text.encode() for pair in fields.items() for text in pair):
        parts += [_cbor_head(3, len(text)), text]
    return b"".join(parts)


def _cbor_head(major: int, length: int) -> bytes:
    return bytes([major << 5 | 26]) + length.to_bytes(4, "big")  # 26: the length follows in four bytes
