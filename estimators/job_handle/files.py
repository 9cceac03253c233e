"""The files that a job leaves in S3: its model and output, downloaded and unpacked, and its checkpoints, inspected."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from estimators.errors import EstimatorError
from smddp.container.bundle import unpack
from smddp.errors import SourceError
from smddp.storage.parallel import in_parallel

if TYPE_CHECKING:
    from smddp.checkpoint import CheckpointInfo
    from smddp.checkpoint.stores import Store
    from smddp.goodput import Account


logger = logging.getLogger(__name__)
_ADVICE = {
    "AccessDenied": "allow this user s3:GetObject and s3:ListBucket; without the latter, S3 denies missing objects, too"
}
_LOOKS_AT_A_TIME = 16


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
    """Raise EstimatorError unless a path is absent or an empty directory."""
    if place.is_symlink() or place.exists():
        if not place.is_dir():
            raise EstimatorError(f"{place} is no directory. Remove it, or give another directory.")
        if any(place.iterdir()):
            raise EstimatorError(
                f"{place} is not empty. Give another directory, so that the files of two jobs do not mix."
            )


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
        raise EstimatorError(f"{uri} is not in S3, so it is not downloaded. Use it where it is.")
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


def model_uri(description: Mapping[str, Any]) -> str | None:
    """Return the URI of a job's model archive, or None if the job has no model (yet)."""
    uri: str | None = description.get("ModelArtifacts", {}).get("S3ModelArtifacts")
    status = description["TrainingJobStatus"]
    # Each description contains the URI. The model exists only if the job completes, or is stopped while training.
    leaves = status == "Completed" or (status == "Stopped" and "TrainingStartTime" in description)
    return uri if uri and leaves else None


def checkpoints_uri(name: str, description: Mapping[str, Any]) -> str:
    """Return the URI of a job's checkpoints, or raise EstimatorError if it keeps none."""
    uri: str | None = description.get("CheckpointConfig", {}).get("S3Uri")
    if uri is None:
        raise EstimatorError(
            f"{name} keeps no checkpoints: it was sent without checkpoint_s3_uri "
            "(CheckpointConfig), so there is nothing to look at or to resume from. Send it again with one."
        )
    return uri


def list_checkpoints(uri: str, s3: Any, *, deep: bool) -> list[CheckpointInfo]:
    """Return all checkpoints below a URI, oldest first; an unreadable one does not hide the others."""
    from smddp.checkpoint.restore.listing import CheckpointList, inspect_each_alone

    store = _store(uri, s3)
    looks = [partial(inspect_each_alone, store, step, deep=deep) for step in store.steps()]
    return CheckpointList(in_parallel(looks, threads=1 if deep else _LOOKS_AT_A_TIME))


def read_goodput(uri: str, s3: Any) -> Account:
    """Return the account of the goodput ledger below a URI."""
    from smddp.goodput import read_account

    return read_account(_store(uri, s3))


def require_checkpoint(uri: str, s3: Any) -> None:
    """Raise EstimatorError if a job can't resume from a URI: it is empty, or has no valid checkpoint.

    Only manifests and the sizes of files are checked.
    """
    from smddp.checkpoint.restore.listing import inspect_each_alone

    store = _store(uri, s3)
    passed_over = []
    for step in store.newest_first():
        info = inspect_each_alone(store, step, deep=False)
        if info.valid:
            logger.info("the job resumes from the checkpoint of step %d in %s", step, uri)
            return
        passed_over.append(f"step {step}: {info.status}, {info.reason}")
    if passed_over:
        raise EstimatorError(f"No checkpoint in {uri} is valid ({'; '.join(passed_over)}). Restore one from a copy.")
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    with _in_words(uri):
        found = s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix.rstrip('/')}/", MaxKeys=1).get("Contents")
    if not found:
        raise EstimatorError(f"There is nothing in {uri} to resume from. Send the job anew, by Estimator.fit().")
    logger.info("%s itself has no checkpoint of smddp; the script resumes from what it finds there", uri)


def _store(uri: str, s3: Any) -> Store:
    from smddp.checkpoint.stores import open_store
    from smddp.checkpoint.stores.s3 import S3Store

    return S3Store(uri, client=s3) if uri.startswith("s3://") else open_store(uri.removeprefix("file://"))
