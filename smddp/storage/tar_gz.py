"""Read an untrusted .tar.gz in sequence and in little memory."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from smddp.errors import DataError
from smddp.storage.byte_stream import ByteStream
from smddp.storage.tar_members import TarMembers


class BadArchiveError(Exception):
    """An archive is damaged, is no .tar.gz, or exceeds the size limit."""


@contextlib.contextmanager
def reading_tar_gz(archive: Path, origin: str, *, most: int | None = None) -> Iterator[TarMembers]:
    """Yield the members of an archive, verified only once `TarMembers.next` returns None: gzip's checksum is last.

    Raise BadArchiveError if it is malformed, or unpacks to more than `most` bytes: a small archive can unpack to a huge
    one.
    """

    def fail(offset: int, problem: str, cause: Exception | None) -> NoReturn:
        raise BadArchiveError(f"at byte {offset}, {problem}") from cause

    with archive.open("rb") as file:
        stream = ByteStream(cast(BinaryIO, _Unpacked(file, most)), name=origin)
        with contextlib.closing(stream):
            try:
                yield TarMembers(stream, fail)
            except (EOFError, zlib.error) as error:
                raise BadArchiveError(str(error)) from error
            except DataError as error:
                if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, gzip.BadGzipFile):
                    raise error.__cause__ from error
                raise BadArchiveError(str(error.__cause__)) from error


class _Unpacked(gzip.GzipFile):
    """The unpacked bytes of a file, up to a limit."""

    def __init__(self, file: BinaryIO, most: int | None) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._most = most

    def read(self, size: int | None = -1) -> bytes:
        piece = super().read(size)
        if self._most is not None and self.tell() > self._most:
            raise BadArchiveError(f"it unpacks to more than {self._most:,} bytes")
        return piece
