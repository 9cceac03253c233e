"""Objects to S3 and ranges of objects from it: in parallel parts, each byte counted, checked and retried."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from botocore.exceptions import ClientError, IncompleteReadError

from smddp.checkpoint.stores.parallel import in_parallel
from smddp.checkpoint.stores.s3_body import Body
from smddp.checkpoint.stores.s3_errors import s3_errors, store_error
from smddp.checkpoint.stores.store import StoreError
from smddp.errors import CheckpointError
from smddp.storage.s3_errors import S3_ERRORS, code_of, is_missing

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, MultipartUploadTypeDef

logger = logging.getLogger(__name__)

PART_SIZE = 8 * 2**20
"""Bytes of a request. Larger ones are no faster, fill the server's memory, and are sent again whole if they fail."""
MOST_PARTS = 10_000
"""Of one object: docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html."""
CONNECTIONS = 10
"""Requests at a time. One connection to AWS carries some 90 MB/s, whatever the network; and each rank that writes, or
host that reads, has as many."""

T = TypeVar("T")

_PAUSES = (0.1, 0.2, 0.4, 0.8)  # seconds before asking again for what broke off
_BLOCK = 2**20  # bytes that are read at a time


class Transfer:
    """Moves bytes between memory and the objects of one bucket. Safe among threads."""

    def __init__(self, client: S3Client, bucket: str, *, part_size: int, connections: int) -> None:
        self._client = client
        self._bucket = bucket
        self._part_size = part_size
        self._connections = connections
        self._free = threading.BoundedSemaphore(connections)

    def upload(self, key: str, content: Sequence[memoryview]) -> None:
        """Write an object; it stands there as a whole when this returns, and not at all, in no part, if it raises.

        Args:
            key: its key.
            content: its bytes, laid end to end. They are sent from where they are.

        Raises:
            StoreError: S3 did not take it.
        """
        whole = Body(content)
        doing = f"could not write s3://{self._bucket}/{key}"
        with s3_errors(doing):
            if len(whole) <= self._part_size:
                self._client.put_object(
                    Bucket=self._bucket,
                    Key=key,
                    Body=whole,  # type: ignore[arg-type] # the stubs want all that a file can do
                    ContentLength=len(whole),
                    ChecksumCRC32=whole.crc32(),
                )
            else:
                self._upload_parts(key, content, len(whole))
            found = self.size(key)
        if found != len(whole):
            raise StoreError(f"{doing}: it has {found or 0} bytes there instead of {len(whole)}", transient=True)

    def download(self, key: str, offset: int, memory: memoryview) -> None:
        """Fill memory with the bytes of an object from an offset on.

        Raises:
            CheckpointError: there are not as many, or the object is missing. The message is only the reason.
            StoreError: S3 did not give them.
        """
        flat = memory.cast("B")
        ranges = range(0, len(flat), self._part_size)
        calls = [
            partial(self._download_range, key, offset + start, flat[start : start + self._part_size])
            for start in ranges
        ]
        in_parallel(calls, threads=self._connections)

    def read_whole(self, key: str, *, largest: int) -> tuple[bytes, str] | None:
        """Read a small object at once.

        Returns:
            Its bytes and its ETag, which belong together; None if it is missing.

        Raises:
            CheckpointError: it is larger than the largest. The message is only the reason.
            StoreError: S3 did not give it.
        """

        def ask() -> tuple[bytes, str]:
            with self._free:
                answer = self._client.get_object(Bucket=self._bucket, Key=key)
                size = answer["ContentLength"]
                with closing(answer["Body"]) as body:
                    if size > largest:
                        raise CheckpointError(f"{_name(key)} is not a file of at most {largest} bytes")
                    content = body.read()
            if len(content) != size:
                raise IncompleteReadError(actual_bytes=len(content), expected_bytes=size)
            return content, answer["ETag"]

        doing = f"could not read s3://{self._bucket}/{key}"
        with s3_errors(doing):
            try:
                return _persistently(doing, ask)
            except ClientError as error:
                if is_missing(error):
                    return None
                raise

    def _upload_parts(self, key: str, content: Sequence[memoryview], size: int) -> None:
        part_size = max(self._part_size, -(-size // MOST_PARTS))
        upload_id = None
        try:
            begun = self._client.create_multipart_upload(Bucket=self._bucket, Key=key, ChecksumAlgorithm="CRC32")
            upload_id, had_retries = begun["UploadId"], begun["ResponseMetadata"]["RetryAttempts"] > 0
            calls = [
                partial(self._upload_part, key, upload_id, number, Body(content, start, min(start + part_size, size)))
                for number, start in enumerate(range(0, size, part_size), 1)
            ]
            parts = in_parallel(calls, threads=self._connections)
            self._complete(key, upload_id, parts, size)
        except BaseException:
            self._abort_all(key, upload_id)
            raise
        if had_retries:
            self._abort_all(key)  # the upload whose begin was not answered

    def _upload_part(self, key: str, upload_id: str, number: int, body: Body) -> CompletedPartTypeDef:
        checksum = body.crc32()
        with self._free:
            answer = self._client.upload_part(
                Bucket=self._bucket,
                Key=key,
                UploadId=upload_id,
                PartNumber=number,
                Body=body,  # type: ignore[arg-type]
                ContentLength=len(body),
                ChecksumCRC32=checksum,
            )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": checksum}

    def _complete(self, key: str, upload_id: str, parts: list[CompletedPartTypeDef], size: int) -> None:
        try:
            self._client.complete_multipart_upload(
                Bucket=self._bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )
        except ClientError as error:
            # An earlier try may have succeeded unseen. Nobody else writes this key: it belongs to one attempt.
            if code_of(error) != "NoSuchUpload":
                raise
            if self.size(key) != size:
                raise

    def abort(self, key: str, upload_id: str) -> None:
        """Give back the parts of an upload that will not be completed. It may be over already.

        Raises:
            ClientError: S3 did not do it, nor any other of S3_ERRORS.
        """
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload_id)
        except ClientError as error:
            if code_of(error) != "NoSuchUpload":
                raise

    def uploads(self, prefix: str) -> Iterator[MultipartUploadTypeDef]:
        """List the multipart uploads of keys that begin with a prefix, begun but not ended."""
        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=prefix)
        for page in pages:
            yield from (upload for upload in page.get("Uploads", []) if upload["Key"].startswith(prefix))

    def _abort_all(self, key: str, upload_id: str | None = None) -> None:
        """Abort all uploads of a key, for it belongs to one attempt; say so if that is not possible now.

        The one that is known first: a role may be allowed to abort, and not to list.
        """
        try:
            if upload_id is not None:
                self.abort(key, upload_id)
            for upload in self.uploads(key):
                if upload["Key"] == key:
                    self.abort(key, upload["UploadId"])
        except S3_ERRORS as error:
            doing = f"could not abort the multipart upload of s3://{self._bucket}/{key}, a later run will"
            logger.warning("%s", store_error(doing, error))

    def size(self, key: str) -> int | None:
        """Give the bytes of an object; None if it is missing.

        Raises:
            ClientError: S3 did not say, nor any other of S3_ERRORS.
        """
        try:
            with self._free:
                return self._client.head_object(Bucket=self._bucket, Key=key)["ContentLength"]
        except ClientError as error:
            if is_missing(error):
                return None
            if code_of(error).isdigit():  # what answers a HEAD has no body, and so no reason; what answers this has
                self._client.get_object(Bucket=self._bucket, Key=key, Range="bytes=0-0")["Body"].close()
            raise

    def _download_range(self, key: str, offset: int, memory: memoryview) -> None:
        """Fill memory; what a broken answer gave is kept, and the rest asked for again."""
        filled = 0

        def ask() -> None:
            nonlocal filled
            with self._free:
                for count in self._blocks(key, offset + filled, memory[filled:]):
                    filled += count

        doing = f"could not read s3://{self._bucket}/{key}"
        with s3_errors(doing):
            try:
                _persistently(doing, ask)
            except ClientError as error:
                if is_missing(error):
                    raise CheckpointError(f"{_name(key)} is missing") from error
                if code_of(error) in ("InvalidRange", "416"):
                    raise CheckpointError(f"{_name(key)} has less than {offset + len(memory)} bytes") from error
                raise

    def _blocks(self, key: str, offset: int, memory: memoryview) -> Iterator[int]:
        """Read into memory, and give the count of bytes after each block."""
        wanted = f"bytes {offset}-{offset + len(memory) - 1}/"
        answer = self._client.get_object(Bucket=self._bucket, Key=key, Range=wanted[:-1].replace(" ", "="))
        body, filled = answer["Body"], 0
        try:
            if not answer.get("ContentRange", "").startswith(wanted):
                raise CheckpointError(f"{_name(key)} has less than {offset + len(memory)} bytes")
            while filled < len(memory):
                count = body.readinto(memory[filled : filled + _BLOCK])  # type: ignore[arg-type] # the same
                if count == 0:
                    raise IncompleteReadError(actual_bytes=filled, expected_bytes=len(memory))
                filled += count
                yield count
        finally:
            body.close()


def _persistently(doing: str, ask: Callable[[], T]) -> T:
    """Ask again where an answer breaks off. Botocore itself retries all that fails before the answer's body."""
    for pause in _PAUSES:
        try:
            return ask()
        except S3_ERRORS as error:  # noqa: PERF203 - a try is nothing beside a request
            if isinstance(error, ClientError):
                raise
            logger.info("%s: %s; asking again", doing, error)
            time.sleep(pause)
    return ask()


def _name(key: str) -> str:
    return key.rpartition("/")[2]
