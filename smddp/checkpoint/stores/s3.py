"""Checkpoints as objects in S3, each commit one conditional request that only one writer can win.

The keys are the paths of the directory store. S3 shows an object as a whole or not at all, so the data files are
simply there once they are uploaded; the manifest goes last, with ``If-None-Match: *`` or, where it replaces one, with
``If-Match`` and that one's ETag.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from smddp.checkpoint.manifest import LARGEST_MANIFEST
from smddp.checkpoint.names import MANIFEST_NAME
from smddp.checkpoint.stores.s3_body import Body
from smddp.checkpoint.stores.s3_client import connect
from smddp.checkpoint.stores.s3_errors import code_of, is_missing, s3_errors, store_error
from smddp.checkpoint.stores.s3_listing import Listing
from smddp.checkpoint.stores.s3_location import S3Location
from smddp.checkpoint.stores.s3_transfer import CONNECTIONS, PART_SIZE, Transfer
from smddp.checkpoint.stores.store import AlreadyCommittedError, StoreError, mentions
from smddp.errors import CheckpointError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

ORPHAN_AGE = timedelta(hours=1)
"""Multipart uploads of files of checkpoints that were begun longer ago, and not ended, are nobody's any more."""

_DELETED_AT_ONCE = 1000  # keys that one DeleteObjects takes
_CONFLICT_TRIES = 5


@dataclass(kw_only=True, slots=True, frozen=True)
class _Connection:
    """What belongs to one process: a client is not shared over a fork."""

    client: S3Client
    transfer: Transfer
    listing: Listing
    process: int


class S3Store:
    """The store at ``s3://bucket/prefix``; `smddp.checkpoint.stores.store.Store` says what each method promises.

    It makes no bucket. Requests are retried, and each waits for a bounded time (`s3_client.connect`).
    """

    def __init__(
        self, uri: str, client: S3Client | None = None, *, part_size: int = PART_SIZE, connections: int = CONNECTIONS
    ) -> None:
        """Say where; the first request is made when it is needed.

        Args:
            uri: ``s3://bucket/prefix``.
            client: boto3's client. Default: one is made in each process that needs one, from the environment.
            part_size: bytes of a request; larger objects go and come in several. S3 wants at least 5 MiB.
            connections: requests at a time.

        Raises:
            ValueError: the URI is none of a place for checkpoints.
        """
        self._location = S3Location.parse(uri)
        self._client = client
        self._part_size = part_size
        self._connections = connections
        self._connection: _Connection | None = None
        self._keeps_conditions: bool | None = None
        self._is_swept = False

    def __str__(self) -> str:
        return str(self._location)

    def path(self, step: int) -> str:
        """Give the URI of a checkpoint."""
        return f"s3://{self._location.bucket}/{self._location.step_prefix(step)}".rstrip("/")

    def check_writable(self) -> None:
        """Write, overwrite and delete a tiny object beside the checkpoints."""
        self._keeps_conditions = self._probe()

    def steps(self) -> list[int]:
        """List all steps in pages of 1,000."""
        with s3_errors(f"could not list {self}"):
            return self._connect().listing.steps()

    def newest_first(self) -> Iterator[int]:
        """List them newest first: at most 62 requests to the first, 9 if there are 10,000 at equal distances."""
        with s3_errors(f"could not list {self}"):
            yield from self._connect().listing.newest_first()

    def attempts(self, step: int) -> list[str]:
        """List the attempts that there are files of."""
        return sorted({attempt for attempt, _ in self._files(step)})

    def write(self, step: int, directory: str, name: str, content: Sequence[memoryview]) -> None:
        """Upload a file, in parallel parts if it is large. What fails leaves nothing there."""
        self._connect().transfer.upload(self._location.key(step, directory, name), content)

    def commit(self, step: int, directory: str, manifest: bytes, *, replacing: bytes | None) -> None:
        """Put the manifest on the condition that nothing, or what is to be replaced, stands there."""
        key, transfer = self._location.manifest_key(step), self._connect().transfer
        logger.debug("committing the attempt %s as %s", directory, self.path(step))
        for tried in range(_CONFLICT_TRIES):
            standing = transfer.read_whole(key, LARGEST_MANIFEST)
            # Ours: an earlier try had succeeded, and its answer was lost.
            if standing is not None and standing.content == manifest:
                self._sweep_once()
                return
            if (standing.content if standing is not None else None) != replacing:
                raise AlreadyCommittedError(
                    f"{self.path(step)} was committed by another writer; let one run write to {self}"
                )
            if tried:
                time.sleep(0.1 * 2**tried)
            with s3_errors(f"could not write s3://{self._location.bucket}/{key}"):
                ...
