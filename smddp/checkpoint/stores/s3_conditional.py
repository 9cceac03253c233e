"""Conditional puts in S3, which succeed for one of several writers: the commit of a step, the ownership of a prefix.

Notes on the commit:
  1. Read the manifest and its ETag. Equal to ours: an earlier try succeeded and its answer was lost; done.
  2. Neither ours nor the expected one: another writer committed; fail.
  3. Put ours with ``If-None-Match: *``, or with ``If-Match`` and the ETag read in 1.
  4. If the condition is not met, or the server ignores conditions, go to 1, with growing pauses, `_COMMIT_TRIES` times
     at most.

The owner of a prefix is named by an object, which the owner rewrites as a heartbeat: S3 has no locks, and a killed
process deletes nothing. A second run decides as follows whether the owner is gone:
  1. The object is absent, or names this run or process: it is free.
  2. Its ETag changes while the second run watches: the owner is alive.
  3. The owner ran on this machine: look for its process.
  4. The owner has the same job name: it is gone, because a platform runs a job once at a time.
  5. The object was not rewritten for `STALE_SECONDS`: it is gone.
To take over is a conditional put on the ETag that was read, so one of several runs succeeds. Clocks of different
machines are never compared: each duration is taken between two times of S3, or of one process.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import weakref
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

from smddp.checkpoint.format.manifest import LARGEST_MANIFEST
from smddp.checkpoint.stores import owner_record as owners
from smddp.checkpoint.stores.owner_record import LARGEST_OWNER, OWNER_NAME, LocationTakenError, Owner
from smddp.checkpoint.stores.s3_location import S3Location, read_small
from smddp.checkpoint.stores.store import AlreadyCommittedError, StoreError
from smddp.storage.s3_bucket import S3Bucket
from smddp.storage.s3_download import Downloads
from smddp.storage.s3_errors import MISSING
from smddp.storage.s3_upload import Uploads

_COMMIT_TRIES = 5
# The object exists or changed; another write is in progress; or, for If-Match, the object is absent.
_UNMET = MISSING | {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}


class Commits:
    """Put manifests by compare and swap.

    A probe before the first commit detects a server that ignores conditions, and logs a warning. On such a server the
    manifest is only read before and after the put, so two writers at the same moment may both believe that they won.
    """

    def __init__(self, bucket: S3Bucket, uploads: Uploads, location: S3Location) -> None:
        self._bucket = bucket
        self._uploads = uploads
        self._location = location
        self._are_exclusive: bool | None = None

    def put(self, step: int, manifest: bytes, *, replacing: bytes | None) -> None:
        """Put the manifest of a step in place of `replacing`; None expects no manifest.

        Raise AlreadyCommittedError if another manifest exists. After a StoreError the put may have succeeded anyway.
        """
        if self._are_exclusive is None:
            self.probe()
        key = self._location.manifest_key(step)
        for tried in range(_COMMIT_TRIES + 1):
            content, etag = read_small(Downloads(self._bucket), key, largest=LARGEST_MANIFEST) or (None, "")
            if content == manifest:
                return
            if content != replacing:
                break
            if tried == _COMMIT_TRIES:
                doing = f"could not write {self._bucket.uri(key)}"
                raise StoreError(f"{doing}: another request for it is always under way; try again", transient=True)
            time.sleep(0.1 * (2**tried - 1))
            condition = {"IfNoneMatch": "*"} if content is None else {"IfMatch": etag}
            if self.put_if(condition, key, manifest) and self._are_exclusive:
                return
        raise AlreadyCommittedError(
            f"another process committed a checkpoint of the same step, s3://{self._location.bucket}/{key}: two runs "
            "share the prefix; give each its own"
        )

    def probe(self) -> None:
        """Put a tiny object of a random name twice, and delete it, to test write access and conditional puts.

        Raise StoreError if the object cannot be written.
        """
        key = f"{self._location.above_steps}smddp-writable-{secrets.token_hex(8)}"
        content = b"Written, and deleted again, to see whether checkpoints can be saved here.\n"
        self.put_if({"IfNoneMatch": "*"}, key, content)
        try:
            self._are_exclusive = not self.put_if({"IfNoneMatch": "*"}, key, content)
        finally:
            doing = f"could not delete {self._bucket.uri(key)}, so old checkpoints will stay as well"
            try:
                self._bucket.ask(doing, lambda client: client.delete_object(Bucket=self._bucket.name, Key=key))
            except StoreError as error:
                logger.warning("%s", error)
        if not self._are_exclusive:
            logger.warning(
                "the S3 server of %s ignores If-None-Match: nothing there keeps two runs from committing the same "
                "step; make sure that only one run saves there",
                self._location,
            )

    def put_if(self, condition: dict[str, Any], key: str, content: bytes) -> bool:
        """Put a small object; False if the condition is not met. After a StoreError the put may have succeeded anyway.

        `condition` is ``{"IfNoneMatch": "*"}`` or ``{"IfMatch": etag}``.
        """
        doing = f"could not write {self._bucket.uri(key)}"
        return self._uploads.put(key, [memoryview(content)], doing=doing, condition=condition, none_if=_UNMET)


logger = logging.getLogger(__name__)

RENEWAL_SECONDS = 10.0
"""Seconds between two rewrites by the owner; each takes two small requests."""

STALE_SECONDS = 60.0
"""Seconds without a rewrite after which the owner counts as gone."""

_PAUSE = 1.0  # seconds between two reads while waiting for an owner
_LAST_SECONDS = 5.0  # bounds the wait of `release` for the deletion
_TRIES = 5


class S3Hold:
    """The ownership of a prefix, until `release` or garbage collection."""

    def __init__(self, bucket: S3Bucket, commits: Commits, location: S3Location, owner: Owner) -> None:
        """Take ownership. Raise LocationTakenError if another run is still alive after `PATIENCE_SECONDS`.

        The wait ends after `STALE_SECONDS` at most, if nothing else shows whether the owner is alive.
        """
        self._object = _Object(bucket, commits, location, owner)
        self._object.acquire()
        released = threading.Event()
        self._thread = threading.Thread(
            target=_renew, args=(self._object, released), name="smddp-checkpoint-owner", daemon=True
        )
        self._thread.start()
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, released.set)
        self._finalizer.atexit = False  # a save may still run at exit

    def check(self) -> None:
        """Verify the ownership by a rewrite. Raise LocationTakenError if another process is the owner."""
        self._object.renew()

    def release(self) -> None:
        """Give up the ownership; do nothing in a fork."""
        if self._process == os.getpid():
            self._finalizer()
            self._thread.join(_LAST_SECONDS)


class _Object:
    """The object that names a prefix's owner."""

    def __init__(self, bucket: S3Bucket, commits: Commits, location: S3Location, owner: Owner) -> None:
        self._bucket = bucket
        self._commits = commits
        self._location = location
        self._key = location.above_steps + OWNER_NAME
        self._owner = owner

    def __str__(self) -> str:
        return self._bucket.uri(self._key)

    def acquire(self) -> None:
        """Write the object if it is absent or its owner is gone; raise LocationTakenError if its owner is alive."""
        begun = time.monotonic()
        first_seen, age, told = None, 0.0, False
        while True:
            owner, etag = self._read()
            watched = time.monotonic() - begun
            if first_seen is None and etag is not None:
                first_seen, age = etag, self._age()
            state = "over" if etag is None or self._is_own(owner) else "unknown"
            if owner is not None and state == "unknown":
                state = "alive" if etag != first_seen else owner.state(self._owner)
            if state == "unknown" and max(age, watched) >= STALE_SECONDS:
                state = "over"
            if state == "over" and self._put(etag):
                if etag is not None and not self._is_own(owner):
                    logger.warning("took %s over from the run %s, which has ended without leaving it", self, owner)
                return
            if state == "alive" and watched >= owners.PATIENCE_SECONDS:
                raise LocationTakenError(str(self._location), owner)
            if state == "unknown" and not told:
                told = True
                seconds = STALE_SECONDS - age
                logger.warning("waiting up to %.0f s to see whether the run %s still saves in %s", seconds, owner, self)
            time.sleep(_PAUSE)

    def renew(self) -> None:
        """Rewrite the object; raise LocationTakenError if it names another process.

        `check` and the heartbeat thread may do so at the same moment: the ETag lets one succeed, and the other retries.
        """
        for _ in range(_TRIES):
            owner, etag = self._read()
            if etag is not None and not self._is_own(owner):
                raise LocationTakenError(str(self._location), owner)
            if self._put(etag):
                return
        raise StoreError(f"could not write {self}: another request for it is always under way", transient=True)

    def delete(self) -> None:
        """Delete the object if it still names this process."""
        owner, etag = self._read()
        if etag is not None and self._is_own(owner):
            self._bucket.ask(
                f"could not delete {self}",
                lambda client: client.delete_object(Bucket=self._bucket.name, Key=self._key),
            )

    def _is_own(self, owner: Owner | None) -> bool:
        return owner is not None and (owner.run == self._owner.run or owner.is_same_process(self._owner))

    def _read(self) -> tuple[Owner | None, str | None]:
        """Return the owner, None if malformed, and the ETag, None if the object is absent."""
        found = read_small(Downloads(self._bucket), self._key, largest=LARGEST_OWNER)
        return (None, None) if found is None else (Owner.from_json(found[0]), found[1])

    def _put(self, etag: str | None) -> bool:
        """Write the object if its ETag is `etag`, or if it is absent for None; return whether the condition was met."""
        self._owner = replace(self._owner, renewals=self._owner.renewals + 1)
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        return self._commits.put_if(condition, self._key, self._owner.to_json())

    def _age(self) -> float:
        """Return the seconds since the last write, by S3's clock; 0 if unknown."""
        answer = self._bucket.ask(
            f"could not look for {self}",
            lambda client: client.head_object(Bucket=self._bucket.name, Key=self._key),
            none_if=MISSING,
        )
        if answer is None:
            return 0.0
        now = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return 0.0 if now is None else (parsedate_to_datetime(now) - answer["LastModified"]).total_seconds()


def _renew(owned: _Object, released: threading.Event) -> None:
    """Rewrite the object until `released` is set, then delete it. The thread keeps no reference to the `S3Hold`."""
    while not released.wait(RENEWAL_SECONDS):
        if not _renewed(owned):
            return
    try:
        owned.delete()
    except Exception as error:  # logged; the next run waits until the object is stale
        logger.info("%s; the next run on another machine waits up to %.0f s", error, STALE_SECONDS)


def _renewed(owned: _Object) -> bool:
    """Rewrite the object once; return False if another process took it."""
    try:
        owned.renew()
    except LocationTakenError as error:
        logger.error("%s", error)  # the next save raises it
        return False
    except Exception as error:  # the next save runs `check`, and raises it if it lasts
        logger.debug("could not renew %s: %s", owned, error)
    return True
