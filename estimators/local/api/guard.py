"""The gate in front of the whole server: it decides who may send requests at all.

The server runs the code that it is sent, so it must obey only programs that have its keys: no web page (a foreign
Origin, a rebound Host), no other user of the machine. A refused request has no effect behind the gate, and a client
without keys costs at most `MEMORY_BYTES` of memory, whatever it sends.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import tempfile
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING

from estimators.local.api.offered import S3
from estimators.local.api.signature import KeyPair, Request, SignatureError, verify
from estimators.local.engine import ApiError

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

logger = logging.getLogger(__name__)

MAX_OBJECT_BYTES = 5 << 30
"""Limit of one request to S3, an object or a part: AWS's own limit, without the overhead of chunked encoding."""
MAX_DOCUMENT_BYTES = 8 << 20
"""Limit of a request to any other service. The largest are CloudWatch Logs' batches: 1 MiB, up to 6 MiB escaped as
JSON."""
MEMORY_BYTES = 1 << 20
"""Bytes of a body held in memory; a larger body stays on disk until its signature is checked."""
_PIECE = 256 << 10
_CLOSED_PATHS = ("/moto-api", "/latest/meta-data", "/latest/api", "/favicon.ico")
"""moto's own paths: they reset the server's state, or hand out credentials."""


class Guard:
    """Lets only requests pass that are signed for this very server."""

    def __init__(self, *, keys: KeyPair, address: tuple[str, int]) -> None:
        self._keys = keys
        host, port = address
        names = {host, "localhost"} if host == "127.0.0.1" else {host}
        self._hosts = frozenset(f"{name}:{port}" for name in names)

    def admit(self, head: Request, path: str, body: RequestBody) -> str:
        """Return the region that a request is signed for, with its body read; raise ApiError to refuse it.

        The body is read only after the access key is checked; a large one stays on disk until the signature is checked.
        """
        try:
            self._check_address(head, path)
            region = verify(replace(head, body_sha256=body.sha256), self._keys).region
            body.read()
            return region
        except SignatureError as error:
            logger.warning("refused %s %s: %s: %s", head.method, path, error.code, error)
            raise ApiError(error.code, str(error), HTTPStatus.FORBIDDEN) from error
        except ApiError as error:
            logger.warning("refused %s %s: %s", head.method, path, error)
            raise

    def _check_address(self, request: Request, path: str) -> None:
        if "origin" in request.headers:
            raise SignatureError("AccessDenied", "Requests from web pages are refused.")
        if request.headers.get("host") not in self._hosts:
            raise SignatureError("AccessDenied", f"This server answers to {' and '.join(sorted(self._hosts))} only.")
        if path.startswith(_CLOSED_PATHS):
            raise SignatureError("AccessDenied", "There is nothing at this path.")


class RequestBody:
    """The body of one request: bounded, read once, on first use, hashed meanwhile, and kept on disk if it is large."""

    def __init__(self, environ: WSGIEnvironment, *, service: str, directory: Path) -> None:
        """Prepare to read as much as a service takes; a large body is kept in ``directory``."""
        self._environ = environ
        self._limit = MAX_OBJECT_BYTES if service == S3 else MAX_DOCUMENT_BYTES
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._hash = hashlib.sha256()
        self.size = 0
        """Bytes read."""

    def sha256(self) -> str:
        """Return the body's SHA-256 in hex; raise ApiError as `read` does."""
        self.read()
        return self._hash.hexdigest()

    def read(self) -> IO[bytes]:
        """Return the body as a file at its beginning.

        Raise ApiError if the body is too large, malformed, too slow or incomplete.
        """
        if self._file is None:
            self._file = io.BytesIO()
            try:
                self._read_all()
            except TimeoutError:
                raise ApiError("RequestTimeout", "The request's body came too slowly, or not at all.", 400) from None
            except OSError as error:  # the client left, or its chunks are malformed
                raise ApiError("IncompleteBody", f"The request's body is not complete: {error}.", 400) from None
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        """Close and forget the body."""
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
