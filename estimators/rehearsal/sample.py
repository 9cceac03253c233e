"""The data of a rehearsal: a local directory, or a sample of a channel on S3."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from estimators.checks import channels
from estimators.errors import EstimatorError
from smddp.display_text import as_size, with_article

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import PaginatorConfigTypeDef

    from estimators.local import LocalSageMaker

logger = logging.getLogger(__name__)

SAMPLE_BYTES = 64 * 2**20
"""Most bytes fetched of a channel on S3, spread over its objects; larger objects are skipped."""

_LISTED = 10_000
"""Most objects listed of a channel, from which the sample is chosen."""


def bring(
    name: str, place: Any, platform: LocalSageMaker, s3: Callable[[], S3Client], *, hosts: int
) -> tuple[Any, str | None]:
    """Copy a channel's files, or a sample of its S3 prefix, to the platform; return the new channel and a note.

    The note describes the sample, or is None without one. A sharded channel gets at least one object for each of
    `hosts`. Raise EstimatorError if the channel is empty, unreadable, or of a kind that can't be sampled.
    """
    there, bucket, prefix = platform.boto_session.client("s3"), platform.default_bucket, f"rehearsal/data/{name}"
    brought = f"s3://{bucket}/{prefix}"
    if isinstance(place, (str, PurePath)) and not str(place).startswith("s3://"):
        return upload(name, place, platform, prefix), None
    uri = channels.uri_of(place)
    source = getattr(place, "config", {}).get("DataSource", {}).get("S3DataSource", {})
    kind = source.get("S3DataType", "S3Prefix") if uri else type(place).__name__
    if uri is None or kind != "S3Prefix":
        raise EstimatorError(
            f"inputs[{name!r}]: it is {with_article(kind)}, and a rehearsal takes a sample of an S3 prefix. Call "
            "rehearse() with a directory that has some of it."
        )
    if not uri.startswith("s3://"):
        raise EstimatorError(
            f"inputs[{name!r}]: {type(place).__name__}({uri!r}) is not on S3. Give rehearse() the directory itself."
        )
    origin, _, wanted = uri.removeprefix("s3://").partition("/")
    is_sharded = source.get("S3DataDistributionType") == "ShardedByS3Key"
    try:
        here = s3()
        found = [(key, size) for key, size in objects(here, origin, wanted, most=_LISTED) if not key.endswith("/")]
        taken = _sample(uri, found, least=hosts if is_sharded else 1)
        for key, _ in taken:
            content = here.get_object(Bucket=origin, Key=key)["Body"].read()
            there.put_object(Bucket=bucket, Key=prefix + _below(key, wanted), Body=content)
    except (ClientError, BotoCoreError) as fault:
        reason = str(fault).rstrip(".")
        raise EstimatorError(
            f"inputs[{name!r}]: no sample of {uri} can be fetched: {reason}. Call rehearse() with a directory that has "
            "some of it."
        ) from fault
    said = _said(name, taken, found)
    if isinstance(place, str):
        return brought, said
    moved = copy.deepcopy(place)
    moved.config["DataSource"]["S3DataSource"]["S3Uri"] = brought
    return moved, said


def upload(name: str, place: str | PurePath, platform: LocalSageMaker, prefix: str) -> str:
    """Upload a local directory or file to the platform's bucket below `prefix`; return its URI.

    Raise EstimatorError if there are no files.
    """
    files = list(_files(name, Path(str(place).removeprefix("file://"))))
    if not files:
        raise EstimatorError(f"inputs[{name!r}]: there are no files in {place}. Give a directory that has some.")
    client = platform.boto_session.client("s3")
    for key, file in files:
        client.upload_file(str(file), platform.default_bucket, f"{prefix}/{key}")
    return f"s3://{platform.default_bucket}/{prefix}"


def objects(s3: S3Client, bucket: str, prefix: str, *, most: int | None = None) -> Iterator[tuple[str, int]]:
    """Yield the keys below a prefix with their sizes in bytes, at most `most`."""
    limit: PaginatorConfigTypeDef = {} if most is None else {"MaxItems": most}
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, PaginationConfig=limit)
    for page in pages:
        yield from ((each["Key"], each["Size"]) for each in page.get("Contents", []))


def _files(name: str, root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files at or below a path, each with its key."""
    if root.is_file():
        yield root.name, root
    elif root.is_dir():
        yield from ((path.relative_to(root).as_posix(), path) for path in sorted(root.rglob("*")) if path.is_file())
    else:
        raise EstimatorError(f"inputs[{name!r}]: there is no {root}. Give s3://bucket/prefix, or a directory.")


def _sample(uri: str, found: Sequence[tuple[str, int]], *, least: int) -> list[tuple[str, int]]:
    """Return objects spread over a prefix, of at most `SAMPLE_BYTES` together, with at least `least` that contain data.

    `found` has all keys with their sizes in bytes.
    """
    if not found:
        raise EstimatorError(f"{uri}: there are no objects.")
    small = [(key, size) for key, size in found if size <= SAMPLE_BYTES]
    data = sorted((each for each in small if _has_data(*each)), key=itemgetter(1))
    larger = len(found) - len(small)
    if larger and len(data) < least:
        raise EstimatorError(
            f"{uri}: {larger} of its objects have more than {SAMPLE_BYTES // 2**20} MiB, and a rehearsal fetches no "
            f"larger one; {len(data)} with data are left, and it needs {least}. Call rehearse() with a directory that "
            "has a little of it."
        )
    total, seen, taken = sum(size for _, size in small), 0, 0
    chosen = []
    for key, size in small:
        if taken * total <= seen * SAMPLE_BYTES and taken + size <= SAMPLE_BYTES:
            chosen.append((key, size))
            taken += size
        seen += size
    if sum(_has_data(*each) for each in chosen) < min(least, len(data)):
        return sorted(data[:least])
    return chosen


def _has_data(key: str, size: int) -> bool:
    """Return whether an object is neither empty nor a marker of Spark or Hadoop, such as ``_SUCCESS``."""
    return size > 0 and not key.rpartition("/")[2].startswith(("_", "."))


def _said(name: str, taken: Sequence[tuple[str, int]], found: Sequence[tuple[str, int]]) -> str:
    """Describe a channel's sample in words; log a warning if some objects are too large."""
    larger = sum(size > SAMPLE_BYTES for _, size in found)
    first = "the first " if len(found) == _LISTED else ""
    said = (
        f"sample of channel {name}: {len(taken):,} of {first}{len(found):,} objects, "
        f"{as_size(sum(size for _, size in taken))}"
    )
    if not larger:
        return said
    said += f", none of the {larger:,} that have more than {SAMPLE_BYTES // 2**20} MiB"
    logger.warning("%s", said)
    return said


def _below(key: str, prefix: str) -> str:
    """Return a key's part after a prefix, starting with ``/``; if the prefix ends inside a name, the whole name."""
    rest = key.removeprefix(prefix)
    if not prefix or prefix.endswith("/") or rest.startswith("/"):
        return f"/{rest.lstrip('/')}"
    return f"/{key.rpartition('/')[2]}" if not rest else f"/{prefix.rpartition('/')[2]}{rest}"
