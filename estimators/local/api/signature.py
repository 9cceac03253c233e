"""AWS Signature Version 4, server side: check that a request is signed with the one key pair that we gave out.

The guard decides what happens to a request that passes or fails. Written from the specification ("Signature Version 4
signing process", AWS General Reference), and tested against botocore's signers. Those signers can't check received
requests: they parse a URL anew, which drops everything after a "#" and takes a path without a slash for a part of the
host; they write the method in capitals, and hash text in place of other bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from urllib.parse import quote, unquote_to_bytes

ALGORITHM = "AWS4-HMAC-SHA256"
CLOCK_SKEW = timedelta(minutes=15)  # what AWS allows
LONGEST_PRESIGNED = timedelta(days=7)  # what AWS allows
WIRE = "latin-1"  # how http.server decodes a request's first line and headers: one character a byte
_TIMESTAMP = "%Y%m%dT%H%M%SZ"
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_UNHASHED_PAYLOADS = ("UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")


class SignatureError(Exception):
    """The request is not signed correctly; `code` is AWS's name of the error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(kw_only=True, slots=True, frozen=True)
class KeyPair:
    """An access key and its secret; the secret is never printed."""

    access_key: str
    secret_key: str = field(repr=False)

    @classmethod
    def random(cls) -> KeyPair:
        """Return a new pair that nobody else has, in the shape of an AWS one."""
        return cls(access_key="SMDDP" + secrets.token_hex(8).upper()[:15], secret_key=secrets.token_urlsafe(30))


@dataclass(kw_only=True, slots=True, frozen=True)
class Request:
    """A request as it came over the wire: nothing unquoted or normalised, one character per byte."""

    method: str
    path: str
    """Raw, percent-encoded, without the query."""
    query: str
    """Raw, percent-encoded, without the question mark."""
    headers: Mapping[str, str]
    """Lower-case names; several values of one name joined by commas."""
    body_sha256: Callable[[], str]
    """Reads the body and returns its SHA-256 in hex. Called only after every other check passes: the whole signature if
    the headers state the hash, as for S3; else everything but the signature itself."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Scope:
    """The date, region and service that a signature is valid for."""

    date: str
    region: str
    service: str
    """AWS's signing name of the service; CloudWatch's is ``monitoring``."""

    def __str__(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


@dataclass(kw_only=True, slots=True, frozen=True)
class _Claim:
    """The statements of a request about its own signature."""

    access_key: str
    scope: Scope
    signed_headers: tuple[str, ...]
    signature: str
    timestamp: str
    presigned: bool
    lifetime: timedelta


def claimed_service(request: Request) -> str:
    """Return AWS's signing name of the service that a request claims to be signed for; "" if it claims none."""
    try:
        return _claim(request).scope.service
    except SignatureError:
        return ""


def verify(request: Request, keys: KeyPair, *, now: datetime | None = None) -> Scope:
    """Return the scope of a request's signature.

    Raise SignatureError if the request is not signed with `keys`, stale or altered.
    """
    claim = _claim(request)
    if not hmac.compare_digest(claim.access_key.encode(), keys.access_key.encode()):
        raise SignatureError("InvalidClientTokenId", "The access key is not the one that this server gave out.")
    _check_time(claim, now or datetime.now(timezone.utc))
    _check_signed_headers(claim, request)
    stated = _stated_payload(claim, request)
    payload = request.body_sha256() if stated is None else stated
    expected = _signature(claim, request, keys, payload)
    if not hmac.compare_digest(claim.signature.encode(), expected.encode()):
        raise SignatureError("SignatureDoesNotMatch", "The signature does not match the request and the secret key.")
    if stated is not None and stated not in _UNHASHED_PAYLOADS and stated != request.body_sha256():
        raise SignatureError("XAmzContentSHA256Mismatch", "The body is not the one that was signed.")
    return claim.scope


def sign_without(request: Request, keys: KeyPair, dropped: Collection[str]) -> str:
    """Return the Authorization header of a request after the ``dropped`` headers (in lower case) are removed.

    The request must have passed `verify` with the same keys, and have its signature in a header.
    """
    claim = _claim(request)
    signed = tuple(name for name in claim.signed_headers if name not in dropped)
    claim = replace(claim, signed_headers=signed)
    signature = _signature(claim, request, keys, request.headers["x-amz-content-sha256"])
    credential = f"{claim.access_key}/{claim.scope}"
    return f"{ALGORITHM} Credential={credential}, SignedHeaders={';'.join(signed)}, Signature={signature}"


def _signature(claim: _Claim, request: Request, keys: KeyPair, payload: str) -> str:
    canonical = "\n".join(
        (
            request.method,
            _canonical_path(request.path, service=claim.scope.service),
            _canonical_query(request.query),
            *(f"{name}:{' '.join(request.headers[name].split())}" for name in claim.signed_headers),
            "",
            ";".join(claim.signed_headers),
            payload,
        )
    )
    to_sign = "\n".join(
        (ALGORITHM, claim.timestamp, str(claim.scope), hashlib.sha256(canonical.encode(WIRE)).hexdigest())
    )
    return hmac.new(_signing_key(keys.secret_key, claim.scope), to_sign.encode(), hashlib.sha256).hexdigest()


def _claim(request: Request) -> _Claim:
    """Read the claim from the Authorization header, or from the query of a presigned S3 URL."""
    header = request.headers.get("authorization")
    if header is not None:
        algorithm, _, rest = header.partition(" ")
        fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
        timestamp, lifetime = request.headers.get("x-amz-date", ""), CLOCK_SKEW
    else:
        query = dict(_query_pairs(request.query))
        algorithm = query.get("X-Amz-Algorithm", "")
        fields = {name: query.get(f"X-Amz-{name}", "") for name in ("Credential", "SignedHeaders", "Signature")}
        timestamp, seconds = query.get("X-Amz-Date", ""), query.get("X-Amz-Expires", "")
        lifetime = min(timedelta(seconds=int(seconds)) if _is_small_number(seconds) else timedelta(), LONGEST_PRESIGNED)
    if algorithm != ALGORITHM:
        older = header is None and "AWSAccessKeyId" in query
        remedy = " Give the client that signs the URL Config(signature_version='s3v4')." if older else ""
        raise SignatureError("MissingAuthenticationToken", f"The request is not signed with {ALGORITHM}.{remedy}")
    credential = fields.get("Credential", "").split("/")
    if len(credential) != 5 or credential[4] != "aws4_request" or not fields.get("SignedHeaders"):
        raise SignatureError("IncompleteSignature", "The request's signature lacks its credential or signed headers.")
    access_key, date, region, service, _ = credential
    if header is None and service != "s3":
        raise SignatureError("MissingAuthenticationToken", "Only requests to S3 may be signed in their query.")
    return _Claim(
        access_key=access_key,
        scope=Scope(date=date, region=region, service=service),
        signed_headers=tuple(fields["SignedHeaders"].split(";")),
        signature=fields.get("Signature", ""),
        timestamp=timestamp,
        presigned=header is None,
        lifetime=lifetime,
    )


def _is_small_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,7}", text) is not None


def _check_time(claim: _Claim, now: datetime) -> None:
    try:
        signed_at = datetime.strptime(claim.timestamp, _TIMESTAMP).replace(tzinfo=timezone.utc)
    except ValueError as error:
        raise SignatureError("IncompleteSignature", "The request does not say when it was signed.") from error
    if not claim.timestamp.startswith(claim.scope.date):
        raise SignatureError("SignatureDoesNotMatch", "The credential's date is not the date of the signature.")
    if not -CLOCK_SKEW <= now - signed_at <= claim.lifetime:
        raise SignatureError("RequestExpired", f"Signed at {claim.timestamp}: too long ago, or in the future.")


def _check_signed_headers(claim: _Claim, request: Request) -> None:
    """Refuse a request if a header that decides its effect is not under the signature."""
    must = {name for name in request.headers if name.startswith("x-amz-")} | {"host"}
    if unsigned := must - set(claim.signed_headers):
        raise SignatureError("SignatureDoesNotMatch", f"Not covered by the signature: {', '.join(sorted(unsigned))}.")
    if missing := set(claim.signed_headers) - set(request.headers):
        raise SignatureError("SignatureDoesNotMatch", f"Signed but not sent: {', '.join(sorted(missing))}.")


def _stated_payload(claim: _Claim, request: Request) -> str | None:
    """Return the payload text that the headers state for the signature; None if the body's own hash counts.

    Only S3 may leave the body unsigned, as on AWS.
    """
    stated = request.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD" if claim.presigned else None)
    if claim.scope.service == "s3":
        if stated is None:
            raise SignatureError("MissingSecurityHeader", "A request to S3 must carry x-amz-content-sha256.")
        if stated in _UNHASHED_PAYLOADS:
            return stated
    if stated is not None and _SHA256.match(stated) is None:
        raise SignatureError("InvalidRequest", f"x-amz-content-sha256: {stated[:80]!r} is not supported here.")
    return stated


def _canonical_path(path: str, *, service: str) -> str:
    """Return the path as it is signed: S3's unchanged, another service's encoded a second time."""
    return path if service == "s3" else quote(path, safe="/~")


def _canonical_query(query: str) -> str:
    pairs = sorted(
        (quote(unquote_to_bytes(name), safe="-_.~"), quote(unquote_to_bytes(value), safe="-_.~"))
        for name, value in (part.partition("=")[::2] for part in query.split("&") if part)
    )
    return "&".join(f"{name}={value}" for name, value in pairs if name != "X-Amz-Signature")


def _query_pairs(query: str) -> list[tuple[str, str]]:
    parts = (part.partition("=")[::2] for part in query.split("&") if part)
    return [(name, unquote_to_bytes(value).decode(errors="replace")) for name, value in parts]


def _signing_key(secret_key: str, scope: Scope) -> bytes:
    key = b"AWS4" + secret_key.encode()
    for part in str(scope).split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
