"""A prefix in S3 that one run has: by an object that says who, and that its owner writes again and again.

There are no locks in S3, and a killed process deletes nothing. That the owner is gone a second run sees by its process,
if that was on the same machine; by the name of the job, which a platform runs once at a time; and else by the object,
which was not written for `STALE_SECONDS`. Clocks are not compared: all times are S3's, or those of one process.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from dataclasses import replace
from email.utils import parsedate_to_datetime

from smddp.checkpoint.stores import owner as owners
from smddp.checkpoint.stores.owner import LARGEST_OWNER, OWNER_NAME, Owner, PlaceTakenError
from smddp.checkpoint.stores.s3_commit import Commits
from smddp.checkpoint.stores.s3_errors import read_small
from smddp.checkpoint.stores.s3_location import S3Location
from smddp.checkpoint.stores.store import StoreError
from smddp.storage.s3_bucket import S3Bucket
from smddp.storage.s3_download import Downloads
from smddp.storage.s3_errors import MISSING

logger = logging.getLogger(__name__)

RENEWAL_SECONDS = 10.0
"""How often the owner writes the object: two small requests."""

STALE_SECONDS = 60.0
"""After which an object that was not written again says that its owner is gone."""

_PAUSE = 1.0  # seconds between two looks
_LAST_SECONDS = 5.0  # how long the end waits for the object to be deleted
_TRIES = 5


class S3Hold:
    """This process has a prefix, until this is released or nothing refers to it any more."""

    def __init__(self, bucket: S3Bucket, commits: Commits, location: S3Location, owner: Owner) -> None:
        """Take it, once another run that is still there has had `PATIENCE_SECONDS` to end.

        Args:
            bucket: That of the prefix.
            commits: Puts objects on a condition.
            location: The prefix.
            owner: Who wants it.

        Raises:
            PlaceTakenError: Another process has it.
            StoreError: It cannot be taken.
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
        self._finalizer.atexit = False  # a save may still be under way

    def check(self) -> None:
        """See that nobody else has it.

        Raises:
            PlaceTakenError: Another process has it.
            StoreError: S3 does not say.
        """
        self._object.renew()

    def release(self) -> None:
        """Let others have it; in a fork this does nothing."""
        if self._process == os.getpid():
            self._finalizer()
            self._thread.join(_LAST_SECONDS)


class _Object:
    """The object that says who has a prefix."""

    def __init__(self, bucket: S3Bucket, commits: Commits, location: S3Location, owner: Owner) -> None:
        self._bucket = bucket
        self._commits = commits
        self._location = location
        self._key = location.above_steps + OWNER_NAME
        self._owner = owner

    def __str__(self) -> str:
        return self._bucket.uri(self._key)

    def acquire(self) -> None:
        """Write it, where there is none or its owner is gone.

        Raises:
            PlaceTakenError: Its owner is not.
            StoreError: S3 does not do it.
        """
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
                raise PlaceTakenError(str(self._location), owner)
            if state == "unknown" and not told:
                told = True
                seconds = STALE_SECONDS - age
                logger.warning("waiting up to %.0f s to see whether the run %s still saves in %s", seconds, owner, self)
            time.sleep(_PAUSE)

    def renew(self) -> None:
        """Write it once more.

        Raises:
            PlaceTakenError: Another process has it.
            StoreError: S3 does not do it.
        """
        for _ in range(_TRIES):
            owner, etag = self._read()
            if etag is not None and not self._is_own(owner):
                raise PlaceTakenError(str(self._location), owner)
            if self._put(etag):
                return
        raise StoreError(f"could not write {self}: another request for it is always under way", transient=True)

    def delete(self) -> None:
        """Let others have it.

        Raises:
            StoreError: S3 does not do it.
        """
        owner, etag = self._read()
        if etag is not None and self._is_own(owner):
            self._bucket.ask(
                f"could not delete {self}",
                lambda client: client.delete_object(Bucket=self._bucket.name, Key=self._key),
            )

    def _is_own(self, owner: Owner | None) -> bool:
        return owner is not None and (owner.run == self._owner.run or owner.is_same_process(self._owner))

    def _read(self) -> tuple[Owner | None, str | None]:
        """Give who it says, if it says that, and its ETag; None if there is none."""
        found = read_small(Downloads(self._bucket), self._key, largest=LARGEST_OWNER)
        return (None, None) if found is None else (Owner.from_json(found[0]), found[1])

    def _put(self, etag: str | None) -> bool:
        """Write it where there is one of this ETag, or none; whether it was so."""
        self._owner = replace(self._owner, renewals=self._owner.renewals + 1)
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        return self._commits.put_if(condition, self._key, self._owner.to_json())

    def _age(self) -> float:
        """Give the seconds since it was written, by S3's clock; 0 if S3 does not say."""
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
    """Renew the object until it is released, and delete it then. A thread does it, which does not keep the hold."""
    while not released.wait(RENEWAL_SECONDS):
        if not _renewed(owned):
            return
    try:
        owned.delete()
    except Exception as error:  # not swallowed: said, and the next run waits a little
        logger.info("%s; the next run on another machine waits up to %.0f s", error, STALE_SECONDS)


def _renewed(owned: _Object) -> bool:
    """Renew the object once; whether to go on with it."""
    try:
        owned.renew()
    except PlaceTakenError as error:
        logger.error("%s", error)  # the next save fails with it
        return False
    except Exception as error:  # not swallowed: the next save sees whether it matters
        logger.debug("could not renew %s: %s", owned, error)
    return True
