"""The commit of a checkpoint: one object put on a condition that only one of several writers can meet."""

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
# Something stands there or changed; somebody writes there at this moment; and, to If-Match, nothing stands there.
_UNMET = MISSING | {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}


class Commits:
    """Puts manifests. Compares and swaps with ``If-None-Match: *``, or ``If-Match`` and the ETag of what stands there.

    A server that ignores these headers is found out before the first commit, and said so once: then what stands
    there is only looked at before and after, and two writers at the same moment may both believe that they won.
    """

    def __init__(self, bucket: S3Bucket, uploads: Uploads, location: S3Location) -> None:
        self._bucket = bucket
        self._uploads = uploads
        self._location = location
        self._are_exclusive: bool | None = None

    def put(self, step: int, manifest: bytes, *, replacing: bytes | None) -> None:
        """Put the manifest of a step where `replacing` stands, or nothing if that is None.

        Raises:
            AlreadyCommittedError: Something else stands there.
            StoreError: S3 did not take it; it may stand there nevertheless.
        """
        if self._are_exclusive is None:
            self.probe()
        key = self._location.manifest_key(step)
        for tried in range(_TRIES + 1):
            content, etag = read_small(Downloads(self._bucket), key, largest=LARGEST_MANIFEST) or (None, "")
            if content == manifest:
                return  # perhaps by an earlier try, whose answer was lost
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
        """Find out whether one may write there, and whether the server keeps conditions.

        It puts a tiny object of a random name beside the checkpoints, twice, and deletes it.

        Raises:
            StoreError: It cannot be written.
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
        """Put a small object; False if the condition is not met.

        Args:
            condition: ``{"IfNoneMatch": "*"}`` or ``{"IfMatch": etag}``.
            key: Where.
            content: What.

        Raises:
            StoreError: S3 did not take it; it may stand there nevertheless.
        """
        doing = f"could not write {self._bucket.uri(key)}"
        return self._uploads.put(key, [memoryview(content)], doing=doing, condition=condition, none_if=_UNMET)
