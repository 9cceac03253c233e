"""A request body made of pieces of memory, sent without joining them."""

from __future__ import annotations

import base64
import io
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

_PIECE = 2**20
"""Bytes per socket write. Smaller writes cost time in Python; a larger one must finish within the timeout."""
_COPIED = 2**16
"""Bytes. Smaller pieces are joined: a copy costs less than a separate write."""


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
