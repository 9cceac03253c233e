"""Checkpoints as objects in S3.

The keys equal the paths of the directory store, so each store reads checkpoints that the other, or SageMaker's copying
agent, wrote. S3 shows an object whole or not at all. So a save uploads the data files, then puts the manifest on a
condition that one writer can meet (`s3_conditional`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from smddp.checkpoint.format.manifest import LARGEST_MANIFEST, is_attempt_name
from smddp.checkpoint.stores.owner_record import Owner
from smddp.checkpoint.stores.s3_conditional import Commits, S3Hold
from smddp.checkpoint.stores.s3_location import ADVICE, Listing, S3Location, read_small, store_error
from smddp.checkpoint.stores.store import StoreError, existing_manifest, mentions, removed_beside
from smddp.display_text import counted
from smddp.errors import CheckpointError
from smddp.storage.s3_bucket import CONNECTIONS, PART_SIZE, PATIENCE, S3Bucket
from smddp.storage.s3_download import Downloads, ReplacedError
from smddp.storage.s3_errors import refusal
from smddp.storage.s3_upload import Uploads

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import DeleteObjectsOutputTypeDef, DeleteTypeDef

logger = logging.getLogger(__name__)

ORPHAN_AGE = timedelta(hours=1)
"""An unfinished multipart upload older than this is an orphan."""

_DELETED_AT_ONCE = 1000  # keys per DeleteObjects request, S3's maximum


class S3Store:
    """The store at ``s3://bucket/prefix``; see `smddp.checkpoint.stores.store.Store` for each method's contract.

    The bucket must exist. Each request, and all its retries together, wait for a bounded time (`patience`).
    """

    def __init__(
        self,
        uri: str,
        client: S3Client | None = None,
        *,
        part_size: int = PART_SIZE,
        connections: int = CONNECTIONS,
        patience: float = PATIENCE,
    ) -> None:
        """Parse the URI, without a request to S3; raise ValueError if it cannot hold checkpoints.

        `client` defaults to one per process. `part_size` is the bytes of a request, for S3 at least 5 MiB;
        `connections` bounds the requests at a time; `patience` is the seconds without progress before a request is
        given up.
        """
        self._location = S3Location.parse(uri)
        self.read_size = part_size
        self.readers = connections
        self._bucket = S3Bucket(
            self._location.bucket,
            advice=ADVICE,
            failure=store_error,
            connections=connections,
            part_size=part_size,
            client=client,
            patience=patience,
        )
        self._downloads = Downloads(self._bucket)
        self._uploads = Uploads(self._bucket)
        self._listing = Listing(self._bucket, self._location)
        self._commits = Commits(self._bucket, self._uploads, self._location)
        self._has_warned_of_uploads = False
        self._orphans_are_aborted = False

    def __str__(self) -> str:
        """Return the URI."""
        return str(self._location)

    def path(self, step: int) -> str:
        """Return the URI of a step."""
        return f"s3://{self._location.bucket}/{self._location.step_prefix(step)}".rstrip("/")

    def check_writable(self) -> None:
        """Put a tiny object beside the checkpoints and delete it. Raise StoreError if that fails."""
        self._commits.probe()

    def hold(self, owner: Owner, *, make: bool) -> S3Hold:  # noqa: ARG002 - a prefix need not be made
        """Take ownership of the prefix."""
        return S3Hold(self._bucket, self._commits, self._location, owner)

    def steps(self) -> list[int]:
        """Return all steps, oldest first; one request per thousand."""
        return self._listing.steps()

    def newest_first(self) -> Iterator[int]:
        """Return all steps, newest first; the first takes at most `s3_listing.MOST_REQUESTS` requests."""
        return self._listing.newest_first()

    def attempts(self, step: int) -> list[str]:
        """Return the attempts of a step that left any file."""
        return sorted({attempt for _, attempt in self._keys(step) if attempt})

    def write(self, step: int, directory: str, name: str, content: Sequence[memoryview]) -> None:
        """Upload a file; a failed upload leaves nothing."""
        self._uploads.write(self._location.key(step, directory, name), content)

    def commit(self, step: int, directory: str, manifest: bytes, *, replacing: bytes | None) -> None:
        """Put the manifest; after the store's first commit, abort orphaned uploads."""
        assert not directory or mentions(manifest, directory), directory
        self._commits.put(step, manifest, replacing=replacing)
        if not self._orphans_are_aborted:
            self._orphans_are_aborted = True
            self._abort_orphans_of_earlier_runs()

    def read_manifest(self, step: int) -> bytes | None:
        """Return the manifest's bytes; None if absent."""
        found = read_small(self._downloads, self._location.manifest_key(step), largest=LARGEST_MANIFEST)
        return None if found is None else found[0]

    def size(self, step: int, directory: str, name: str) -> int | None:
        """Return the size of a file in bytes; None if absent."""
        key = self._location.key(step, directory, name)
        found = self._bucket.version(key, doing=f"could not look for {self._bucket.uri(key)}")
        return found.size if found else None

    def read_into(self, step: int, directory: str, name: str, offset: int, memory: memoryview) -> None:
        """Fill memory with the bytes of a file, starting at `offset`."""
        try:
            count = self._downloads.fill_in_parallel(self._location.key(step, directory, name), offset, memory)
        except FileNotFoundError as error:
            raise CheckpointError(f"{name} is missing") from error
        except ReplacedError as error:
            raise CheckpointError(f"{name} was replaced while it was read") from error
        if count < memory.nbytes:
            raise CheckpointError(f"{name} has less than {offset + memory.nbytes} bytes")

    def discard(self, step: int, directory: str) -> None:
        """Remove an attempt's files and unfinished uploads, unless the manifest names the attempt."""
        assert directory == "" or is_attempt_name(directory), directory
        existing = existing_manifest(self, step)
        if existing is not None and mentions(existing, directory):
            logger.warning("left the files of %s/%s in place: they are the checkpoint", self.path(step), directory)
            return
        self._remove_keys(step, [key for key, attempt in self._keys(step) if attempt == directory], [directory])
        if directory:
            self._abort_uploads_if_allowed(f"{self._location.step_prefix(step)}{directory}/")

    def remove(self, step: int) -> None:
        """Remove our files of a step, the manifest first: a removal that is interrupted leaves no checkpoint."""
        keys, prefix = self._keys(step), self._location.step_prefix(step)
        beside = removed_beside(self, step, [key.removeprefix(prefix) for key, attempt in keys if not attempt])
        self._remove_keys(step, [self._location.manifest_key(step)], [])
        in_attempts = [key for key, attempt in keys if attempt]
        attempts = sorted({attempt for _, attempt in keys})
        self._remove_keys(step, [*in_attempts, *(prefix + name for name in beside)], attempts)
        self._abort_uploads_if_allowed(self._location.step_prefix(step))

    def write_beside(self, directory: str, name: str, content: bytes) -> None:
        """Put a small object beside the steps."""
        key = f"{self._location.above_steps}{directory}/{name}"
        self._uploads.put(key, [memoryview(content)], doing=f"could not write {self._bucket.uri(key)}")

    def names_beside(self, directory: str) -> list[str]:
        """Return the names of the objects in a directory beside the steps; one request per thousand."""
        prefix = f"{self._location.above_steps}{directory}/"
        names = [key.removeprefix(prefix) for key in self._listing.keys(prefix)]
        return [name for name in names if name and "/" not in name]

    def read_beside(self, directory: str, name: str, *, largest: int) -> bytes | None:
        """Return an object beside the steps; None if absent."""
        key = f"{self._location.above_steps}{directory}/{name}"
        found = read_small(self._downloads, key, largest=largest)
        return None if found is None else found[0]

    def abort_orphans(self, *, older_than: timedelta = ORPHAN_AGE) -> int:
        """Abort the unfinished multipart uploads of killed processes, and return the count: their parts are billed.

        Younger uploads may belong to a live process, so they stay. A store's first commit calls this.
        """
        return self._abort_uploads(f"{self._location.above_steps}step-", begun_before=_now() - older_than)

    def _abort_orphans_of_earlier_runs(self) -> None:
        try:
            count = self.abort_orphans()
        except StoreError as error:
            self._warn_of_uploads(error)
            return
        if count:
            logger.info("aborted %s of earlier processes in %s", counted(count, "unfinished upload"), self)

    def _abort_uploads_if_allowed(self, prefix: str) -> None:
        """Abort uploads; only warn if the role may not list or abort them."""
        try:
            self._abort_uploads(prefix)
        except StoreError as error:
            self._warn_of_uploads(error)

    def _warn_of_uploads(self, error: StoreError) -> None:
        level = logging.DEBUG if self._has_warned_of_uploads else logging.WARNING
        self._has_warned_of_uploads = True
        logger.log(level, "%s; a lifecycle rule of the bucket can do it (AbortIncompleteMultipartUpload)", error)

    def _keys(self, step: int) -> list[tuple[str, str]]:
        """List our keys of a step except the manifest, each with its attempt."""
        manifest = self._location.manifest_key(step)
        listed = self._listing.keys(self._location.step_prefix(step))
        found = [(key, self._location.attempt_of(key)) for key in listed]
        return [(key, attempt) for key, attempt in found if attempt is not None and key != manifest]

    def _remove_keys(self, step: int, keys: Sequence[str], attempts: Sequence[str]) -> None:
        """Remove objects, and the empty folders of attempts and of the step.

        A server that stores objects in a file system still lists an empty folder until the key of the folder is
        deleted. On other servers deleting that key changes nothing.
        """
        step_prefix, doing = self._location.step_prefix(step), f"could not remove {self.path(step)}"
        folders = [f"{step_prefix}{attempt}/" for attempt in attempts if attempt] + [step_prefix]
        left = iter([*keys, *folders])
        while batch := list(islice(left, _DELETED_AT_ONCE)):
            request: DeleteTypeDef = {"Objects": [{"Key": key} for key in batch], "Quiet": True}
            answer = self._bucket.ask(doing, partial(_delete, self._bucket.name, request))
            for refused in answer.get("Errors", []):
                found = f"{doing}: {refused.get('Key')}"
                raise store_error(refusal(found, refused.get("Code", ""), refused.get("Message", ""), ADVICE))

    def _abort_uploads(self, prefix: str, *, begun_before: datetime | None = None) -> int:
        doing = f"could not abort the unfinished multipart uploads in {self}"
        uploads = [
            upload
            for upload in self._uploads.unfinished(prefix, doing=doing)
            if self._location.attempt_of(upload["Key"]) is not None
            and (begun_before is None or upload["Initiated"] < begun_before)
        ]
        for upload in uploads:
            self._uploads.abort(upload["Key"], upload["UploadId"], doing=doing)
        return len(uploads)


def _delete(bucket: str, request: DeleteTypeDef, client: S3Client) -> DeleteObjectsOutputTypeDef:
    return client.delete_objects(Bucket=bucket, Delete=request)


def _now() -> datetime:
    return datetime.now(timezone.utc)
