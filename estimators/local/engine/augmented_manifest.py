"""Reads an augmented manifest: JSON Lines, one sample a line.

An attribute whose name ends in ``-ref`` names an S3 object; any other attribute is the data itself. The format is in
https://docs.aws.amazon.com/sagemaker/latest/dg/augmented-manifest.html. It does not say how text is sent: here as it
is, without quotes. Every other value is sent as JSON.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.job_request import InputChannel
from estimators.local.engine.objects import S3Uri, explaining, read_object

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_REFERENCE = "-ref"

Line = tuple[S3Uri | bytes, ...]
"""The parts to send for one line, one for each attribute: an object, or a value as bytes."""


def read_manifest(s3: S3Client, channel: InputChannel) -> list[Line]:
    """Return the lines of a channel's augmented manifest, without empty ones.

    Raise FailedJobError if no line is left, or a line lacks an attribute of the channel.
    """
    with explaining(f'Data download failed: channel "{channel.name}"', channel.uri):
        _, pieces = read_object(s3, channel.uri)
        content = b"".join(pieces)
    lines = [
        _parse(text, f"line {number}", channel) for number, text in enumerate(content.split(b"\n"), 1) if text.strip()
    ]
    if not lines:
        raise _failure(channel, "the manifest has no lines; write one JSON object a line")
    return lines


def _parse(text: bytes, where: str, channel: InputChannel) -> Line:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _failure(channel, f"{where} is no JSON ({error}); write one JSON object a line") from error
    if not isinstance(document, dict):
        raise _failure(
            channel, f"{where} is no JSON object but of the type {type(document).__name__}; write one a line"
        )
    if missing := [name for name in channel.attributes if name not in document]:
        has = ", ".join(sorted(document)[:20]) or "none"
        raise _failure(
            channel, f"{where} has no {', '.join(missing)}, which AttributeNames asks for; its attributes are {has}"
        )
    try:
        return tuple(_part(name, document[name]) for name in channel.attributes)
    except (ValueError, RecursionError) as error:
        raise _failure(channel, f"{where}: {error}") from error


def _part(name: str, value: Any) -> S3Uri | bytes:
    if name.endswith(_REFERENCE):
        uri = S3Uri.parse(str(value))
        if not uri.key:
            raise ValueError(f"{name} is {uri}, which is a bucket; name an object")
        uri.key.encode()  # every key is UTF-8
        return uri
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)).encode()


def _failure(channel: InputChannel, why: str) -> FailedJobError:
    return FailedJobError(f'ClientError: Data download failed: channel "{channel.name}": {channel.uri}: {why}')
