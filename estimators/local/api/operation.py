"""Find the operation and the JSON document of a request, in each of AWS's protocols."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qs

from estimators.local.api.offered import S3
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


@dataclass(kw_only=True, slots=True, frozen=True)
class ApiOperation:
    """The operation that a request asks for."""

    service: str
    """AWS's signing name of the operation's service, or `OWN_SERVICE`."""
    name: str
    """AWS's name of the operation; the request's method and path if it names none, as for S3."""

    @property
    def is_own(self) -> bool:
        """Whether the operation is our own, unknown to AWS."""
        return self.service == OWN_SERVICE

    @property
    def is_sagemakers(self) -> bool:
        """Whether botocore's model of SageMaker or its metrics has the operation, whatever the request's protocol."""
        if self.service != "sagemaker":
            return False
        return self.name == PUT_METRICS or self.name in service_model().operation_names


def requested_operation(environ: WSGIEnvironment, service: str) -> ApiOperation:
    """Return the operation of a request signed for a service; raise ApiError if it is another service's."""
    target: str = environ.get("HTTP_X_AMZ_TARGET", "")
    if not target:
        return ApiOperation(service=service, name=_name_without_target(environ, service))
    prefix, _, name = target.partition(".")
    if prefix not in _TARGETS.get(service, (prefix,)) or (prefix == OWN_SERVICE and service != "sagemaker"):
        raise ApiError("UnknownOperationException", f"{target[:80]!r} is not an operation of {service}.")
    if prefix == "SageMaker" and name not in service_model().operation_names:
        raise ApiError("UnknownOperationException", f"SageMaker has no operation {name[:80]!r}.")
    return ApiOperation(service=OWN_SERVICE if prefix == OWN_SERVICE else service, name=name)


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


def read_document(environ: WSGIEnvironment) -> dict[str, Any]:
    """Return the JSON object in a request's body, empty without a body.

    Raise ApiError (SerializationException) if the body is no JSON object, or too deep.
    """
    content = environ["wsgi.input"].read()
    try:
        document = json.loads(content or b"{}", parse_constant=_refuse_constant)
        json.dumps(document, ensure_ascii=False).encode()  # an unpaired surrogate is no text
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
