"""Leave the common prefixes without objects out of SeaweedFS's lists.

To S3 a prefix is a part of a key: it is listed as long as an object has it. SeaweedFS lists its directories instead. It
removes an empty one some minutes later, or never if it ended before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http.client import HTTPConnection
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import unescape

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from estimators.local.api.signature import KeyPair

_COMMON_PREFIX = re.compile(rb"<CommonPrefixes>\s*<Prefix>([^<]*)</Prefix>\s*</CommonPrefixes>")
_KEY_COUNT = re.compile(rb"(?<=<KeyCount>)\d+(?=</KeyCount>)")
_URL_ENCODED = b"<EncodingType>url</EncodingType>"


def has_common_prefixes(command: str, target: str) -> bool:
    """Return whether the answer to a request is a list that may have common prefixes: of a bucket, by a delimiter."""
    path, _, query = target.partition("?")
    return command == "GET" and "/" not in path.strip("/") and "delimiter" in parse_qs(query)


def without_empty(listing: bytes, has_objects: Callable[[str], bool]) -> bytes:
    """Return a list without the common prefixes for which `has_objects` returns False."""

    def kept(found: re.Match[bytes]) -> bytes:
        text = unescape(found[1].decode())
        return found[0] if has_objects(unquote(text) if _URL_ENCODED in listing else text) else b""

    shown = _COMMON_PREFIX.sub(kept, listing)
    removed = listing.count(b"<CommonPrefixes>") - shown.count(b"<CommonPrefixes>")
    return _KEY_COUNT.sub(lambda found: b"%d" % (int(found[0]) - removed), shown)


def has_objects(connection: HTTPConnection, keys: KeyPair, bucket: str, prefix: str) -> bool:
    """Ask SeaweedFS whether any key of a bucket begins with a prefix. If it does not answer with a list, say yes."""
    target = f"/{bucket}?list-type=2&max-keys=1&prefix={quote(prefix, safe='')}"
    request = AWSRequest(method="GET", url=f"http://{connection.host}{target}")
    S3SigV4Auth(Credentials(keys.access_key, keys.secret_key), "s3", "us-east-1").add_auth(request)
    connection.request("GET", target, headers=dict(request.headers.items()))
    answer = connection.getresponse()
    return b"<Contents>" in answer.read() or answer.status != 200
