"""Reads MXNet's RecordIO, the format of a Pipe mode channel with RecordWrapperType "RecordIO".

A record is a header of 8 bytes (a magic number, 3 bits of kind and 29 bits of size), its content, and zeros up to a
multiple of 4 bytes. A writer splits content at each magic number and leaves the number out; the reader puts it back.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, NoReturn

from smddp.data.formats.record import LARGEST_RECORD, RawRecord, place
from smddp.errors import DataError
from smddp.storage.byte_stream import ByteStream

_MAGIC = 0xCED7230A
_MAGIC_SIZE = 4  # bytes
_HEADER = struct.Struct("<II")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


class RecordIOReader:
    """Cuts a stream into records, each ``{"__key__": "17", "record": b"..."}``, numbered from 0.

    ``name`` names the stream in errors; ``largest_record`` is the maximum size in bytes.
    """

    def __init__(self, file: BinaryIO, *, name: str, largest_record: int = LARGEST_RECORD) -> None:
        """Read a stream, and own it: `close` closes it."""
        self.number = 0
        self._stream = ByteStream(file, name=name, offset=0, size=None)
        self._largest = largest_record

    @property
    def offset(self) -> int:
        """The byte at which the next record begins."""
        return self._stream.offset

    def read(self) -> RawRecord | None:
        """Return the next record, or None at the end; raise DataError if it is cut, damaged or too large."""
        offset = self._stream.offset
        parts: list[bytes] = []
        if not self._record(parts):
            return None
        content = {"__key__": str(self.number - 1), "record": _MAGIC.to_bytes(_MAGIC_SIZE, "little").join(parts)}
        return RawRecord(shard=self._stream.name, number=self.number - 1, offset=offset, content=content)

    def skip(self) -> int | None:
        """Skip the next record; return its first byte's offset, or None at the end. Raise DataError as `read` does."""
        offset = self._stream.offset
        return offset if self._record(None) else None

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

    def _record(self, parts: list[bytes] | None) -> bool:
        left, expected = self._largest, (_WHOLE, _FIRST)
        while header := self._stream.read(_HEADER.size):
            if len(header) < _HEADER.size:
                self._fail("the stream is cut in a record's header; see why it ended")
            magic, kind_and_size = _HEADER.unpack(header)
            kind, size = kind_and_size >> 29, kind_and_size & ((1 << 29) - 1)
            if magic != _MAGIC or kind not in expected:
                self._fail('no RecordIO record begins here; is the channel\'s RecordWrapperType "RecordIO"?')
            left -= size if kind in (_WHOLE, _FIRST) else _MAGIC_SIZE + size
            if left < 0:
                self._fail(f"the record has more than {self._largest} bytes, the most of one; raise largest_record")
            self._part(size, parts)
            if kind in (_WHOLE, _LAST):
                self.number += 1
                return True
            expected = (_MIDDLE, _LAST)
        if expected != (_WHOLE, _FIRST):
            self._fail("the stream is cut between two parts of a record; see why it ended")
        return False

    def _part(self, size: int, parts: list[bytes] | None) -> None:
        padding = -size % 4
        if parts is None:
            count = self._stream.skip(size)
        else:
            parts.append(self._stream.read(size))
            count = len(parts[-1])
        if count < size or self._stream.skip(padding) < padding:
            self._fail("the stream is cut in a record; see why it ended")

    def _fail(self, problem: str) -> NoReturn:
        raise DataError(f"{place(self._stream.name, self.number, self._stream.offset)}: {problem}")
