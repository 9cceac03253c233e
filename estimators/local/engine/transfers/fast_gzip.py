"""A gzip stream that spends its time where it pays: weights hardly compress, and the job waits for their archive.

zlib's fastest level takes a minute for a GB of weights, and saves a few per cent. Here each block is compressed by the
method that suits a sample of it. The result is one gzip member, which every program reads.
"""

from __future__ import annotations

import io
import struct
import time
import zlib
from typing import Any, BinaryIO

_BLOCK = 1 << 20
"""Bytes that are compressed by one method."""
_PIECES, _PIECE = 8, 2048
"""Number and size of the pieces of a block that are its sample."""
_WORTHWHILE = 0.9
"""A block is stored if its sample does not shrink to this part of its size."""
_STORED, _FASTEST = 0, 1
"""zlib's levels."""
_FASTEST_XFL, _UNKNOWN_OS = 4, 255
"""Fields of the header, by RFC 1952."""


def fast_gzip(target: BinaryIO) -> io.BufferedWriter:
    """Return a stream that writes its gzip member to `target`, complete once closed; `target` stays open."""
    return io.BufferedWriter(_Member(target), _BLOCK)


class _Member(io.RawIOBase):
    """A gzip member. Each write is a block, which ends at a byte's boundary and refers to no earlier one."""

    def __init__(self, target: BinaryIO) -> None:
        self._target, self._size, self._checksum = target, 0, 0
        header = struct.pack("<2s2BI2B", b"\x1f\x8b", zlib.DEFLATED, 0, int(time.time()), _FASTEST_XFL, _UNKNOWN_OS)
        target.write(header)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, content: Any, /) -> int:
        block = memoryview(content)  # a buffer: its type has a public name since Python 3.12
        method = _method(block)
        self._target.write(method.compress(block) + method.flush(zlib.Z_SYNC_FLUSH))
        self._checksum = zlib.crc32(block, self._checksum)
        self._size += len(block)
        return len(block)

    def close(self) -> None:
        if not self.closed:
            end = zlib.compressobj(wbits=-zlib.MAX_WBITS).flush()
            self._target.write(end + struct.pack("<2I", self._checksum, self._size & 0xFFFFFFFF))
        super().close()


def _method(block: memoryview) -> zlib._Compress:
    """Return a new compressor: the fastest one that makes a sample of the block smaller, or one that stores it."""
    step = max(len(block) // _PIECES, _PIECE)
    sample = b"".join(block[start : start + _PIECE] for start in range(0, len(block), step))
    matched, coded = _deflate(_FASTEST), _deflate(_FASTEST, zlib.Z_HUFFMAN_ONLY)
    by_matches, by_codes = (len(each.compress(sample) + each.flush()) for each in (matched, coded))
    if min(by_matches, by_codes) > _WORTHWHILE * len(sample):
        return _deflate(_STORED)
    # Weights of 16 bits have no repeated sequences, but few exponents: the search for sequences is in vain.
    return _deflate(_FASTEST, zlib.Z_HUFFMAN_ONLY if by_codes <= by_matches else zlib.Z_DEFAULT_STRATEGY)


def _deflate(level: int, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> zlib._Compress:
    return zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
