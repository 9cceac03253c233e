"""A file that is read in sequence, with the position it has come to, and errors that name both."""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO

from smddp.errors import DataError

_SKIP = 1 << 20  # bytes read at a time to pass over them where a file cannot be sought in


class ByteStream:
    """Reads exactly what was asked for; less only at the end."""

    def __init__(self, file: BinaryIO, *, name: str, offset: int = 0, size: int | None = None) -> None:
        """Take a file over.

        Args:
            file: Anything with ``read(n)`` and ``close()``: a file, a pipe, the body of an answer.
            name: What errors call it.
            offset: The byte of the whole at which the file begins.
            size: The bytes of the whole; None if nobody knows.
        """
        self.name = name
        self.offset = offset
        self.size = size
        self._file = buffered(file)
        self._can_seek = size is not None and self._file.seekable()

    def read(self, count: int) -> bytes:
        """Give so many bytes, fewer only at the end.

        Raises:
            DataError: The file cannot be read.
        """
        try:
            piece = self._file.read(count)
        except OSError as error:
            raise self._failure(error) from error
        self.offset += len(piece)
        return piece

    def read_line(self, limit: int) -> bytes:
        """Give a line with its end; without one at the end of the file, or after ``limit`` bytes.

        Raises:
            DataError: The file cannot be read.
        """
        try:
            line = self._file.readline(limit)
        except OSError as error:
            raise self._failure(error) from error
        self.offset += len(line)
        return line

    def skip(self, count: int) -> int:
        """Pass over so many bytes, fewer only at the end, and say how many.

        Raises:
            DataError: The file cannot be read.
        """
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
    """Give a file that reads as much as it is asked for; it closes the one that it is made of."""
    if isinstance(file, io.BufferedIOBase):
        return file
    return io.BufferedReader(file if isinstance(file, io.RawIOBase) else _Raw(file), 1 << 17)


class _Raw(io.RawIOBase):
    """What has only ``read`` and ``close``, as a file that can be buffered."""

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
