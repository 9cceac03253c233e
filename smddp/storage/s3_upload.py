"""Upload objects to S3, in parallel parts with checksums; abort uploads that fail.

Notes on a multipart upload, where the answer to any request may be lost:
  1. Begin: record each try before its request (`begun`). A lost answer may leave an upload whose ID is unknown.
  2. Send the parts, each with its CRC32.
  3. Complete. ``NoSuchUpload`` after a retry means success if the object has the expected size: the key belongs to one
     attempt, so nobody else writes it.
  4. After any failure, and after a lost answer in 1, list the key's unfinished uploads and abort them. A later run
     aborts those that remain (`S3Store.abort_orphans`).
"""

from __future__ import annotations

import base64
import io
import logging
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from smddp.errors import SmddpError
from smddp.storage.parallel import in_parallel
from smddp.storage.s3_bucket import S3Bucket
from smddp.storage.s3_errors import Refusal, code_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, MultipartUploadTypeDef

logger = logging.getLogger(__name__)

MOST_PARTS = 10_000
"""Parts of one object: docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html."""

_PIECE = 2**20
"""Bytes per socket write. Smaller writes cost time in Python; a larger one must finish within the timeout."""
_COPIED = 2**16
"""Bytes. Smaller pieces are joined: a copy costs less than a separate write."""

_OVER = {"NoSuchUpload"}


class Uploads:
    """Writes objects of one bucket. Thread-safe."""

    def __init__(self, bucket: S3Bucket) -> None:
        """Write to a bucket."""
        self._bucket = bucket

    def write(self, key: str, content: Sequence[memoryview]) -> None:
        """Write an object from concatenated pieces, without a copy. It is complete on return, and never partial."""
        whole = Body(content)
        doing = f"could not write {self._bucket.uri(key)}"
        if len(whole) <= self._bucket.part_size:
            self.put(key, content, doing=doing)
        else:
            self._write_parts(key, content, len(whole), doing)
        found = self._size(key, doing)
        if found != len(whole):
            message = f"{doing}: it has {found} bytes there instead of {len(whole)}"
            raise self._bucket.failure(Refusal(message=message, transient=True))

    def put(
        self,
        key: str,
        content: Sequence[memoryview],
        *,
        doing: str,
        condition: dict[str, Any] | None = None,
        none_if: frozenset[str] = frozenset(),
    ) -> bool:
        """Write an object in one request; False if S3 answers with a code in `none_if`, for an unmet condition.

        `condition` is ``{"IfNoneMatch": "*"}`` or ``{"IfMatch": etag}``.
        """
        whole = Body(content)
        checksum = whole.crc32()

        def put(client: S3Client) -> bool:
            whole.seek(0)
            client.put_object(
                Bucket=self._bucket.name,
                Key=key,
                Body=whole,  # type: ignore[arg-type] # the stubs want a whole file
                ContentLength=len(whole),
                ChecksumCRC32=checksum,
                **(condition or {}),
            )
            return True

        return self._bucket.ask(doing, put, none_if=none_if) is not None

    def abort(self, key: str, upload_id: str, *, doing: str) -> None:
        """Abort an upload, and so delete its parts. An upload that has already ended is not an error."""
        self._bucket.ask(
            doing,
            lambda client: client.abort_multipart_upload(Bucket=self._bucket.name, Key=key, UploadId=upload_id),
            none_if=_OVER,
        )

    def unfinished(self, prefix: str, *, doing: str) -> Iterator[MultipartUploadTypeDef]:
        """List the unfinished multipart uploads below a prefix."""
        for page in self._bucket.pages(doing, "list_multipart_uploads", Prefix=prefix):
            yield from (upload for upload in page.get("Uploads", []) if upload["Key"].startswith(prefix))

    def _write_parts(self, key: str, content: Sequence[memoryview], size: int, doing: str) -> None:
        part_size = max(self._bucket.part_size, -(-size // MOST_PARTS))
        begun: list[str | None] = []

        def begin(client: S3Client) -> str:
            begun.append(None)  # the ID is unknown until the answer
            answer = client.create_multipart_upload(Bucket=self._bucket.name, Key=key, ChecksumAlgorithm="CRC32")
            begun[-1] = answer["UploadId"]
            return answer["UploadId"]

        try:
            upload_id = self._bucket.ask(doing, begin)
            calls = [
                partial(
                    self._write_part, key, upload_id, number, Body(content, start, min(start + part_size, size)), doing
                )
                for number, start in enumerate(range(0, size, part_size), 1)
            ]
            self._complete(key, upload_id, in_parallel(calls, threads=self._bucket.connections), size, doing)
        except BaseException:
            self._abort_all(key, begun)
            raise
        if begun[:-1]:
            self._abort_all(key, [])  # uploads begun by tries whose answer was lost

    def _write_part(self, key: str, upload_id: str, number: int, body: Body, doing: str) -> CompletedPartTypeDef:
        checksum = body.crc32()

        def put(client: S3Client) -> CompletedPartTypeDef:
            body.seek(0)
            with self._bucket.free:
                answer = client.upload_part(
                    Bucket=self._bucket.name,
                    Key=key,
                    UploadId=upload_id,
                    PartNumber=number,
                    Body=body,  # type: ignore[arg-type]
                    ContentLength=len(body),
                    ChecksumCRC32=checksum,
                )
            return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": checksum}

        return self._bucket.ask(doing, put)

    def _complete(self, key: str, upload_id: str, parts: list[CompletedPartTypeDef], size: int, doing: str) -> None:
        def complete(client: S3Client) -> None:
            try:
                client.complete_multipart_upload(
                    Bucket=self._bucket.name, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}
                )
            except ClientError as error:
                # An earlier try may have succeeded with its answer lost (note 3).
                if code_of(error) not in _OVER or self._size(key, doing) != size:
                    raise

        self._bucket.ask(doing, complete)

    def _size(self, key: str, doing: str) -> int:
        found = self._bucket.version(key, doing=doing)
        return found.size if found else 0

    def _abort_all(self, key: str, begun: Sequence[str | None]) -> None:
        """Abort all uploads of a key, which belongs to one attempt; log failures.

        Each request is made even if others fail: a role may be allowed to abort but not to list, and expired
        credentials may be renewed by the next request.
        """
        doing = f"could not abort the multipart upload of {self._bucket.uri(key)}, a later run will"
        uploads = {upload_id for upload_id in begun if upload_id is not None}
        try:
            uploads |= {upload["UploadId"] for upload in self.unfinished(key, doing=doing) if upload["Key"] == key}
        except SmddpError as error:
            if len(uploads) < max(len(begun), 1):  # an upload may exist that only the list shows
                logger.warning("%s", error)
        for upload_id in uploads:
            with _failure_as_warning():
                self.abort(key, upload_id, doing=doing)


@contextmanager
def _failure_as_warning() -> Iterator[None]:
    """Log a failure instead of raising it: a later run aborts unfinished uploads."""
    try:
        yield
    except SmddpError as error:
        logger.warning("%s", error)


class Body:
    """A byte range of several pieces of memory, as a file that botocore reads, and rewinds to retry."""

    def __init__(self, pieces: Sequence[memoryview], start: int = 0, stop: int | None = None) -> None:
        """Take bytes `start` to `stop` of the concatenated pieces."""
        flat = [piece.cast("B") for piece in pieces if piece.nbytes]
        ends = list(accumulate(len(piece) for piece in flat))
        total = ends[-1] if ends else 0
        stop = total if stop is None else stop
        assert 0 <= start <= stop <= total
        self._pieces: list[memoryview] = []
        for index in range(bisect_right(ends, start), len(flat)):
            begin = ends[index] - len(flat[index])
            if begin >= stop:
                break
            self._pieces.append(flat[index][max(0, start - begin) : stop - begin])
        self._ends = list(accumulate(len(piece) for piece in self._pieces))
        self._position = 0

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def crc32(self) -> str:
        """Return the checksum for S3's header: base64 of the big-endian CRC32."""
        value = 0
        for piece in self._pieces:
            value = zlib.crc32(piece, value)
        return base64.b64encode(value.to_bytes(4, "big")).decode()

    def read(self, size: int = -1) -> memoryview | bytes:
        """Return the next bytes, empty at the end.

        The result may be longer than `size`: http.client asks for 16 KiB at a time, and sends whatever it receives.
        """
        if size < 0:
            return b"".join(iter(lambda: bytes(self.read(_PIECE)), b""))
        if self._position >= len(self):
            return b""
        index = bisect_right(self._ends, self._position)
        piece = self._pieces[index][self._position - self._ends[index] :][: max(size, _PIECE)]  # a negative index
        if len(piece) >= _COPIED:
            self._position += len(piece)
            return piece
        joined = bytearray(piece)
        for following in self._pieces[index + 1 :]:
            if len(joined) + len(following) > _PIECE or len(following) >= _COPIED:
                break
            joined += following
        self._position += len(joined)
        return bytes(joined)

    def readinto(self, memory: memoryview) -> int:
        """Fill memory with the next bytes and return the count. The CRT calls this to sign, if it is installed."""
        start = self._position
        piece = self.read(len(memory))[: len(memory)]
        memory[: len(piece)] = piece
        self._position = start + len(piece)
        return len(piece)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Seek like a file."""
        self._position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self)}[whence] + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position
