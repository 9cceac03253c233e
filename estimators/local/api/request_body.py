"""A request's body: bounded, hashed while it is read, and kept on disk if it is large.

So a client that proves nothing costs at most `MEMORY_BYTES`, whatever it sends.
"""

from __future__ import annotations

import hashlib
import io
import re
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from estimators.local.engine import ApiError

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

MAX_OBJECT_BYTES = 5 << 30
"""What S3 takes in one request, an object or a part; AWS's own limit, without what chunked encoding adds."""
MAX_DOCUMENT_BYTES = 8 << 20
"""What any other service takes. The largest are CloudWatch Logs' batches: 1 MiB, up to 6 when JSON escapes them."""
MEMORY_BYTES = 1 << 20
"""What of a body is held in memory; a larger one goes to disk until it is known to be good."""
_PIECE = 256 << 10


class RequestBody:
    """The body of one request. It is read on the first demand, and once."""

    def __init__(self, environ: WSGIEnvironment, *, limit: int, directory: Path) -> None:
        """Note where it comes from.

        Args:
            environ: The request.
            limit: The most that is taken, in bytes.
            directory: Where a large one is kept.
        """
        self._environ = environ
        self._limit = limit
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._hash = hashlib.sha256()
        self.size = 0
        """Bytes read."""

    def sha256(self) -> str:
        """Return the body's SHA-256, in hex.

        Raises:
            ApiError: The body is too large, malformed, too slow, or not all there.
        """
        self.read()
        return self._hash.hexdigest()

    def read(self) -> IO[bytes]:
        """Return the body, as a file at its beginning.

        Raises:
            ApiError: The body is too large, malformed, too slow, or not all there.
        """
        if self._file is None:
            self._file = io.BytesIO()
            try:
                self._read_all()
            except TimeoutError:
                raise ApiError("RequestTimeout", "The request's body came too slowly, or not at all.", 400) from None
            except OSError as error:  # the client left, or what it sent is not in chunks
                raise ApiError("IncompleteBody", f"The request's body is not complete: {error}.", 400) from None
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        """Forget the body."""
        if self._file is not None:
            self._file.close()

    def _read_all(self) -> None:
        assert self._file is not None
        stream = self._environ["wsgi.input"]
        chunked = self._environ.get("wsgi.input_terminated", False)
        length = _content_length(self._environ, chunked=chunked)
        if length > self._limit:
            raise _too_large(self._limit)
        while piece := stream.read(_PIECE if chunked else min(_PIECE, length - self.size)):
            self.size += len(piece)
            if self.size > self._limit:
                raise _too_large(self._limit)
            if self.size > MEMORY_BYTES and isinstance(self._file, io.BytesIO):
                on_disk = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - `close` closes it
                on_disk.write(self._file.getbuffer())
                self._file = on_disk
            self._hash.update(piece)
            self._file.write(piece)
        if not chunked and self.size < length:
            raise OSError(f"{self.size} of {length} bytes came")


def _content_length(environ: WSGIEnvironment, *, chunked: bool) -> int:
    text = environ.get("CONTENT_LENGTH", "")
    if "HTTP_TRANSFER_ENCODING" in environ and (text or not chunked):
        raise ApiError("InvalidRequest", "Give a body either a Content-Length or Transfer-Encoding: chunked.", 400)
    if text and not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise ApiError("InvalidRequest", f"Content-Length: {text[:40]!r} is not a number of bytes.", 400)
    return int(text or 0)


def _too_large(limit: int) -> ApiError:
    return ApiError("EntityTooLarge", f"The request's body is too large: at most {limit} bytes are taken.", 413)
