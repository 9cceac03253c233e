"""Download a job's model and output from S3, and unpack the archives."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from estimators.errors import EstimatorError

_ADVICE = {
    "AccessDenied": "allow s3:GetObject and s3:ListBucket to who asks; without the latter, S3 says this of an object "
    "that is not there, too"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    """The directories with a job's files on this machine."""

    model: Path | None
    """The directory with the content of /opt/ml/model; None if absent, or not requested."""
    output: Path | None
    """The directory with the content of /opt/ml/output/data; None if absent, or not requested."""


def download(
    s3: Any, description: Mapping[str, Any], directory: Path, *, only: Literal["model", "output"] | None = None
) -> JobFiles:
    """Download a job's files into the directories ``model`` and ``output``, or `only` one, below `directory`.

    Nothing is written before all files have been found. Raise EstimatorError if there are none, a directory is not
    empty, S3 refuses, or an archive is damaged or would write outside its directory.
    """
    name = description["TrainingJobName"]
    output = f"{description['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{name}/output"
    model_uri = description.get("ModelArtifacts", {}).get("S3ModelArtifacts")
    kinds = {"model": model_uri, "output": f"{output}/output.tar.gz"}
    if description["OutputDataConfig"].get("CompressionType") == "NONE":
        kinds["output"] = f"{output}/data/"
    kinds = {kind: uri for kind, uri in kinds.items() if only in (None, kind)}
    for kind in kinds:
        _require_room(directory / kind)
    found = {kind: _objects(s3, uri) for kind, uri in kinds.items() if uri is not None}
    if not any(found.values()):
        nothing = "neither a model nor output" if only is None else f"no {only}"
        raise EstimatorError(
            f"{name} has left {nothing}: it is {description['TrainingJobStatus']}, and there is nothing in {output}."
        )
    for kind, keys in found.items():
        if keys:
            _fetch(s3, str(kinds[kind]), keys, directory / kind)
    places = {kind: directory / kind if found.get(kind) else None for kind in ("model", "output")}
    return JobFiles(**places)


def _require_room(place: Path) -> None:
    """Raise if a path is neither absent nor an empty directory."""
    if place.is_symlink() or place.exists():
        if not place.is_dir():
            raise EstimatorError(f"{place} is no directory. Remove it, or give a directory without it.")
        if any(place.iterdir()):
            raise EstimatorError(f"{place} is not empty. Give a directory without it, so that no file of two jobs mix.")


def _objects(s3: Any, uri: str) -> list[str]:
    """Return the key of an archive, if it exists; for a URI that ends with a slash, the keys of all files below it."""
    from smddp.storage.s3_errors import is_missing

    bucket, key = _parts(uri)
    with _in_words(uri):
        if key.endswith("/"):
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
            keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
            return [each for each in keys if not each.endswith("/")]  # the S3 console creates such objects for folders
        try:
            s3.head_object(Bucket=bucket, Key=key)
        except s3.exceptions.ClientError as error:
            if is_missing(error):
                return []
            raise
    return [key]


def _fetch(s3: Any, uri: str, keys: list[str], directory: Path) -> None:
    """Download an archive and unpack it, or all files below a URI that ends with a slash, into a directory."""
    bucket, key = _parts(uri)
    try:
        with _in_words(uri):
            directory.mkdir(parents=True, exist_ok=True)
            if key.endswith("/"):
                _prefix(s3, bucket, key, keys, directory)
            else:
                _archive(s3, bucket, key, directory)
    except OSError as error:
        raise EstimatorError(f"{uri} can't be written to {directory}: {error}. Give another directory.") from error


def _parts(uri: str) -> tuple[str, str]:
    """Split an S3 URI into bucket and key. Unlike in other URLs, ``#``, ``?`` and ``%`` belong to the key."""
    scheme, _, rest = uri.partition("://")
    if scheme != "s3":
        raise EstimatorError(f"{uri} is not in S3: there is nothing to download. Take it from there.")
    bucket, _, key = rest.partition("/")
    return bucket, key


@contextmanager
def _in_words(uri: str) -> Iterator[None]:
    """Turn S3's errors into an EstimatorError that says what to do."""
    from boto3.exceptions import Boto3Error

    from smddp.storage.s3_errors import S3_ERRORS, explain

    try:
        yield
    except (*S3_ERRORS, Boto3Error) as error:
        raise EstimatorError(f"{explain(f'could not read {uri}', error, _ADVICE).message}.") from error


def _archive(s3: Any, bucket: str, key: str, directory: Path) -> None:
    from smddp.container.bundle import unpack
    from smddp.errors import SourceError

    # Next to the directory: /tmp may have less space than the user's disk.
    with tempfile.TemporaryDirectory(prefix=".smddp-download-", dir=directory.parent) as temporary:
        archive = Path(temporary, "archive.tar.gz")
        s3.download_file(bucket, key, str(archive))
        try:
            unpack(archive, directory, name=f"s3://{bucket}/{key}", most_bytes=shutil.disk_usage(directory).free)
        except SourceError as error:
            raise EstimatorError(str(error)) from error


def _prefix(s3: Any, bucket: str, prefix: str, keys: list[str], directory: Path) -> None:
    names = {key: PurePosixPath(key[len(prefix) :]) for key in keys}
    for key, name in names.items():
        if name.is_absolute() or ".." in name.parts or not name.parts:
            raise EstimatorError(f"s3://{bucket}/{key} is refused: it would lie outside {directory}.")
    for key, name in names.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        s3.download_file(bucket, key, str(path))
