"""Objects in S3: their URIs, and transfers of one or many, with errors that a job's owner can act on."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from boto3.exceptions import Boto3Error
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from urllib3.exceptions import HTTPError

from estimators.hosts.opt_ml_tree import HostTree, legible
from estimators.local.engine.errors import FailedJobError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

MAX_KEY_BYTES = 1024
"""S3's limit on a key."""
_CHUNK = 1 << 20
_ATTEMPTS = 5
"""How often a read at one position of an object is tried."""
_MOST_IN_A_ROW = 3
"""After so many failures in a row, S3 or the disk is taken for the cause, not the files."""


@dataclass(kw_only=True, slots=True, frozen=True)
class S3Uri:
    """``s3://bucket/key``; the key may be empty, an object's, or a prefix."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> S3Uri:
        """Read ``s3://bucket/key``; raise ValueError for any other text."""
        scheme, _, rest = text.partition("://")
        bucket, _, key = rest.partition("/")
        if scheme != "s3" or not bucket:
            raise ValueError(f"{text!r} is not of the form s3://bucket/prefix")
        return cls(bucket=bucket, key=key)

    def below(self, relative: str) -> S3Uri:
        """Return the object ``relative`` in this prefix, taken as a folder."""
        folder = self.key.rstrip("/")
        return S3Uri(bucket=self.bucket, key=f"{folder}/{relative}" if folder else relative)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


@dataclass(kw_only=True, slots=True, frozen=True)
class FileUri:
    """``file:///directory``: a directory of this machine for a job's output."""

    path: Path

    def below(self, relative: str) -> FileUri:
        """Return the file ``relative`` in this directory."""
        return FileUri(path=self.path / relative)

    def __str__(self) -> str:
        return f"file://{self.path}"


class BadKeyError(Exception):
    """A file's name can't be a key in S3."""


class CancelledError(Exception):
    """A transfer was given up because the job ends."""


@contextlib.contextmanager
def explaining(what: str, uri: S3Uri | FileUri) -> Iterator[None]:
    """Turn the errors of a transfer into a FailedJobError, ``ClientError: …``, that names the action and the URI."""
    head = f"ClientError: {what}: {legible(str(uri))}"
    try:
        yield
    except ClientError as error:
        raise FailedJobError(f"{head}: {_explain(error, uri)}") from error
    except (BotoCoreError, Boto3Error, BadKeyError, HTTPError, UnicodeEncodeError) as error:
        raise FailedJobError(f"{head}: {error}") from error
    except OSError as error:
        where = f" ({legible(os.fsdecode(error.filename))})" if isinstance(error.filename, str | bytes) else ""
        raise FailedJobError(f"{head}: {error.strerror or error}{where}") from error


def require_writable(s3: S3Client, uri: S3Uri | FileUri, what: str) -> None:
    """Raise FailedJobError if nothing can be put at ``uri``: its bucket is absent, or its directory not writable."""
    with explaining(what, uri):
        if isinstance(uri, S3Uri):
            s3.head_bucket(Bucket=uri.bucket)
            return
        # Only checked, not made: a job that fails leaves no directory.
        there = next(path for path in (uri.path, *uri.path.parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
            raise NotADirectoryError(errno.ENOTDIR, "no directory that you can write to", str(there))


def list_objects(s3: S3Client, uri: S3Uri) -> list[S3Uri]:
    """Return the objects whose keys begin with the URI's, sorted by key, without those that only mark a folder."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=uri.bucket, Prefix=uri.key)
    keys = sorted(item["Key"] for page in pages for item in page.get("Contents", []))
    return [S3Uri(bucket=uri.bucket, key=key) for key in keys if not key.endswith("/")]


def require_key(uri: S3Uri | FileUri) -> None:
    """Raise BadKeyError if S3 allows no such key; a FileUri always passes."""
    if isinstance(uri, FileUri):
        return
    try:
        size = len(uri.key.encode())
    except UnicodeEncodeError:
        raise BadKeyError("the name is not UTF-8, as every key in S3 is; rename the file") from None
    if size > MAX_KEY_BYTES:
        raise BadKeyError(f"the key has {size:,} bytes, and S3 takes {MAX_KEY_BYTES:,}; give the file a shorter path")


def download(s3: S3Client, uri: S3Uri, path: Path, *, cancelled: Callable[[], bool]) -> None:
    """Download one object to ``path``, and make its directory.

    Raise CancelledError once ``cancelled`` returns True between two pieces, and the errors of `read_object`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _, pieces = read_object(s3, uri)
    with contextlib.closing(pieces), path.open("wb") as file:
        for piece in pieces:
            if cancelled():
                raise CancelledError
            file.write(piece)


def read_object(s3: S3Client, uri: S3Uri) -> tuple[int, Generator[bytes]]:
    """Return an object's size in bytes, and its content in pieces.

    Raise ClientError if S3 refuses; reading the pieces also raises BotoCoreError, HTTPError and FailedJobError.
    """
    # 1. A broken connection is made again, and the read goes on at the byte where it broke: _ATTEMPTS times in a row
    #    at one position, with a growing pause.
    # 2. All pieces are of one version: IfMatch makes a change of the object meanwhile an error (412).
    # 3. An S3 that ignores the range would repeat bytes: ContentRange is checked.
    first = s3.get_object(Bucket=uri.bucket, Key=uri.key)
    size, tag = first["ContentLength"], first["ETag"]

    def pieces() -> Generator[bytes]:
        body, done, failures = first["Body"], 0, 0
        while True:
            with contextlib.closing(body):
                try:
                    while piece := body.read(_CHUNK):
                        done, failures = done + len(piece), 0
                        yield piece
                except (HTTPClientError, IncompleteReadError, HTTPError):  # HTTPError: over TLS
                    if (failures := failures + 1) == _ATTEMPTS:
                        raise
                    time.sleep(0.05 * 2**failures)
            if done == size:
                return
            following = s3.get_object(Bucket=uri.bucket, Key=uri.key, IfMatch=tag, Range=f"bytes={done}-")
            body = following["Body"]
            came = following.get("ContentRange", "the whole object")
            if not came.startswith(f"bytes {done}-"):
                body.close()
                raise FailedJobError(
                    f"ClientError: {uri}: S3 was asked to continue at byte {done} and sent {came}; ranges of objects "
                    "must work in it"
                )

    return size, pieces()


def upload(s3: S3Client, path: Path, uri: S3Uri | FileUri) -> None:
    """Upload a file to S3, or copy it into a directory of this machine, whole or not at all."""
    if isinstance(uri, S3Uri):
        s3.upload_file(str(path), uri.bucket, uri.key)
        return
    uri.path.parent.mkdir(parents=True, exist_ok=True)
    # A unique name: two jobs may write the same file at once, and the later one replaces it as a whole.
    part = uri.path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        shutil.copyfile(path, part)
        part.replace(uri.path)
    finally:
        part.unlink(missing_ok=True)


def _explain(error: ClientError, uri: S3Uri | FileUri) -> str:
    assert isinstance(uri, S3Uri)
    detail = error.response.get("Error", {})
    match detail.get("Code"):
        case "NoSuchBucket":
            return f"the bucket {uri.bucket} does not exist; create it, or correct the URI"
        case "404" if error.operation_name == "HeadBucket":
            return f"the bucket {uri.bucket} does not exist; create it, or correct the URI"
        case "NoSuchKey" | "404":
            return "there is no such object"
        case "PreconditionFailed" | "412":
            return "it was changed while it was read; let nothing write to the data of a job that runs"
        case code:
            return f"{code}: {detail.get('Message', '')}"


class Transfers:
    """Copies many files to S3: a file that can't be copied delays no other, and is logged.

    ``what`` is the name of the files in a FailureReason.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures: dict[tuple[HostTree, PurePath], FailedJobError] = {}
        self._in_a_row = 0

    def copy(self, tree: HostTree, path: PurePath, uri: S3Uri | FileUri, put: Callable[[], None]) -> None:
        """Copy one file by ``put``; write a failure into its host's log, once for each file.

        Raise FailedJobError after `_MOST_IN_A_ROW` failures in a row: the next files would fail, too.
        """
        try:
            with explaining(self._what, uri):
                require_key(uri)
                put()
        except Exception as error:  # of any kind: the next file must be copied, too
            if not isinstance(error, FailedJobError):
                logger.warning("%s could not be copied, by a defect of the platform", path, exc_info=True)
            self._note(tree, path, error)
        else:
            self._in_a_row = 0
            self._failures.pop((tree, path), None)

    def has_failed(self, tree: HostTree, path: PurePath) -> bool:
        """Return whether the last copy of a file failed."""
        return (tree, path) in self._failures

    def forget_gone(self, present: Iterable[tuple[HostTree, PurePath]]) -> None:
        """Forget the failures of files that are gone."""
        if self._failures:
            self._failures = {file: self._failures[file] for file in self._failures.keys() & set(present)}

    @property
    def delayed(self) -> bool:
        """Whether a failed file may be copied later: S3 or the disk failed, not the file."""
        return not all(map(_is_its_own_fault, self._failures.values()))

    def check(self) -> None:
        """Raise FailedJobError with the first reason if the last copy of any file failed."""
        if self._failures:
            first, more = next(iter(self._failures.values())), len(self._failures) - 1
            raise FailedJobError(f"{first}" + (f"; and {more} more files could not be copied" if more else ""))

    def _note(self, tree: HostTree, path: PurePath, error: Exception) -> None:
        failure = error if isinstance(error, FailedJobError) else FailedJobError(f"InternalServerError: {error!r}")
        self._failures[tree, path] = failure
        tree.tell(path, f"could not be copied: {failure}")
        if _is_its_own_fault(failure):
            return
        self._in_a_row += 1
        if self._in_a_row == _MOST_IN_A_ROW:
            self._in_a_row = 0
            raise failure from error.__cause__


def _is_its_own_fault(error: FailedJobError) -> bool:
    """Return whether the file itself is the cause: its name or its permissions."""
    return isinstance(error.__cause__, BadKeyError | PermissionError)
