"""An answer to a request: a JSON document, or a refusal in AWS's form of an error, in the caller's protocol."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from estimators.local.api.offered import S3
from estimators.local.engine import ApiError

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

_XML_SERVICES = frozenset({"", S3, "cloudfront", "route53"})
"""REST services that speak XML. A request signed for no service gets S3's form."""


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
