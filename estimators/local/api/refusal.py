"""A refusal in AWS's form of an error, in the caller's protocol."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from estimators.local.engine import ApiError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

SERVICE = "smddp.service"
"""Environment key under which the guard puts AWS's signing name of the service that a request claims."""

_XML_SERVICES = frozenset({"", "s3", "cloudfront", "route53"})
"""REST services that speak XML. A request signed for no service gets S3's form."""


def refuse(error: ApiError, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer a request with an error, as a WSGI application does."""
    identifier = str(uuid.uuid4())
    kind, content = _document(error, environ, identifier)
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
    start_response(f"{error.status} {phrase}", headers)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [content]


def _document(error: ApiError, environ: WSGIEnvironment, identifier: str) -> tuple[str, bytes]:
    fields = {"__type": error.code, "message": error.message}
    service = environ.get(SERVICE, "")
    if "HTTP_SMITHY_PROTOCOL" in environ:
        return "application/cbor", _cbor(fields)
    if "HTTP_X_AMZ_TARGET" in environ:
        return "application/x-amz-json-1.1", json.dumps(fields).encode()
    is_form = environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded")
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
