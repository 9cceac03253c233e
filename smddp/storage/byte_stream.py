"""Read a file in sequence; errors name the file and the position."""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO

from smddp.errors import DataError

_SKIP = 1 << 20  # bytes per read when skipping in a file that cannot seek


class ByteStream:
    """Reads exactly the requested bytes, fewer only at the end. Each method raises DataError if the file fails."""

    def __init__(self, file: BinaryIO, *, name: str, offset: int = 0, size: int | None = None) -> None:
        """Take ownership of a file: anything with ``read(n)`` and ``close()``, such as a pipe or an HTTP body.

        The file's next byte is byte `offset` of the content, whose `size` in bytes is None if unknown.
        """
        self.name = name
        self.offset = offset
        self.size = size
        self._file = buffered(file)
        self._can_seek = size is not None and self._file.seekable()

    def read(self, count: int) -> bytes:
        """Return `count` bytes, fewer only at the end."""
        try:
            piece = self._file.read(count)
        except OSError as error:
            raise self._failure(error) from error
        self.offset += len(piece)
        return piece

    def read_line(self, limit: int) -> bytes:
        """Return a line with its newline, which is absent at the end of the file or after `limit` bytes."""
        try:
            line = self._file.readline(limit)
        except OSError as error:
            raise self._failure(error) from error
        self.offset += len(line)
        return line

    def skip(self, count: int) -> int:
        """Skip `count` bytes, fewer only at the end, and return how many were skipped."""
        if self._can_seek:
            assert self.size is not None
            count = max(min(count, self.size - self.offset), 0)
            try:
                self._file.seek(count, os.SEEK_CUR)
            except OSError as error:
                raise self._failure(error) from error
            self.offset += count
            return count
        left = count
        while left and (piece := self.read(min(left, _SKIP))):
            left -= len(piece)
        return count - left

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _failure(self, error: OSError) -> DataError:
        return DataError(
            f"cannot read {self.name} at byte {self.offset}: {error.strerror or error}; see whether its disk, or the "
            "way to it, fails"
        )


def buffered(file: BinaryIO | io.RawIOBase) -> io.BufferedIOBase:
    """Wrap a file so that each read returns the requested bytes; closing the wrapper closes the file."""
    if isinstance(file, io.BufferedIOBase):
        return file
    return io.BufferedReader(file if isinstance(file, io.RawIOBase) else _Raw(file), 1 << 17)


class _Raw(io.RawIOBase):
    """Adapts an object with only ``read`` and ``close`` to a raw file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._file.close()
        super().close()
