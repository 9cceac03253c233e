"""Commit a checkpoint to S3: a conditional put of the manifest, which succeeds for one writer only.

Notes on the commit:
  1. Read the manifest and its ETag. Equal to ours: an earlier try succeeded and its answer was lost; done.
  2. Neither ours nor the expected one: another writer committed; fail.
  3. Put ours with ``If-None-Match: *``, or with ``If-Match`` and the ETag read in 1.
  4. If the condition is not met, or the server ignores conditions, go to 1, with growing pauses, `_TRIES` times at
     most.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any

from smddp.checkpoint.format.manifest import LARGEST_MANIFEST
from smddp.checkpoint.stores.s3_errors import read_small
from smddp.checkpoint.stores.s3_location import S3Location
from smddp.checkpoint.stores.store import AlreadyCommittedError, StoreError
from smddp.storage.s3_bucket import S3Bucket
from smddp.storage.s3_download import Downloads
from smddp.storage.s3_errors import MISSING
from smddp.storage.s3_upload import Uploads

logger = logging.getLogger(__name__)

_TRIES = 5
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
        for tried in range(_TRIES + 1):
            content, etag = read_small(Downloads(self._bucket), key, largest=LARGEST_MANIFEST) or (None, "")
            if content == manifest:
                return
            if content != replacing:
                break
            if tried == _TRIES:
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
