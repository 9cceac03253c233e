"""A shard: its records and marks, its reader by file extension, and several shards in a row as one long sequence."""

from __future__ import annotations

import contextlib
import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, BinaryIO, cast

from smddp.data.formats.json_lines import JsonLinesReader
from smddp.data.formats.record import LARGEST_RECORD, RawRecord, RecordReader
from smddp.data.formats.tar import TarReader
from smddp.data.source import Blob, DirectorySource, Source
from smddp.display_text import counted
from smddp.errors import DataError
from smddp.storage.byte_stream import buffered

MARK_EVERY = 32
"""Records from one mark to the next; on average half as many are skipped before the first wanted record."""

_READERS: dict[str, type[TarReader] | type[JsonLinesReader]] = {".tar": TarReader, ".jsonl": JsonLinesReader}
_BEYOND = 1 << 16  # bytes fetched after the last wanted record: the next header, which shows where it ends
_COMPRESSED = (".gz", ".tgz", ".zst", ".bz2", ".xz", ".lz4")

_WORTH_A_SEEK = 8 * 2**20
"""Bytes. Skipping fewer bytes is faster than opening a new S3 stream."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Shard:
    """One file of records."""

    name: str
    size: int
    """Bytes."""
    records: int
    marks: tuple[int, ...] = field(compare=False)
    """The bytes at which records 0, ``mark_every``, 2 × ``mark_every`` and so on begin."""
    mark_every: int = field(default=MARK_EVERY, compare=False)
    """Records from one mark to the next; an index from an earlier version may have fewer marks."""

    def __post_init__(self) -> None:
        numbers = (self.size, self.records, self.mark_every, *self.marks)
        if not isinstance(self.name, str) or any(type(number) is not int or number < 0 for number in numbers):
            raise DataError(f"the index of {self.name!r} has something else than a name and numbers from 0 on")
        places = (*self.marks, self.size)
        is_rising = all(earlier < later for earlier, later in pairwise(places))
        if len(self.marks) != -(-self.records // max(self.mark_every, 1)) or not is_rising:
            raise DataError(f"the marks of {self.name!r} do not fit its {self.records} records and {self.size} bytes")

    def mark_before(self, number: int) -> tuple[int, int]:
        """Return the last marked record up to this one, and the byte at which it begins."""
        place = number // self.mark_every
        return place * self.mark_every, self.marks[place]

    def mark_after(self, number: int) -> int:
        """Return a byte at or behind the end of a record: the next mark, or the end of the shard."""
        place = number // self.mark_every + 1
        return self.marks[place] if place < len(self.marks) else self.size

    @property
    def blob(self) -> Blob:
        """The shard's file."""
        return Blob(name=self.name, size=self.size)


def select_shards(files: Sequence[Blob], source: Source) -> list[Blob]:
    """Return the shards among a source's files; raise DataError if there are none or some are compressed."""
    for blob in files:
        name = blob.name.lower()
        if name.endswith(_COMPRESSED) and (".tar." in name or ".jsonl." in name or name.endswith(".tgz")):
            raise DataError(
                f"{blob.name} in {source} is compressed: a read can't begin in its middle; decompress the shards "
                "(image files stay compressed)"
            )
    shards = [blob for blob in files if _ending(blob.name)]
    if not shards:
        raise DataError(
            f"there are no shards in {source}, among {counted(len(files), 'file')}: shards are *.tar and *.jsonl"
        )
    return shards


def open_reader(
    source: Source,
    shard: Blob,
    *,
    number: int = 0,
    offset: int = 0,
    wanted: int | None = None,
    largest_record: int = LARGEST_RECORD,
) -> RecordReader:
    """Open a shard at record ``number``, which begins at byte ``offset``, and read its records in sequence.

    ``wanted`` is the expected number of bytes to read; None reads to the end. It bounds only the prefetch, not the
    reads. Raise DataError if the shard cannot be opened; its size must match ``shard``.
    """
    ending = _ending(shard.name)
    assert ending is not None, shard
    if wanted is None or offset + wanted >= shard.size or isinstance(source, DirectorySource):
        file = source.open(shard.name, offset)
    else:
        file = cast("BinaryIO", _Bounded(source, shard.name, offset, wanted + _BEYOND))
    return _READERS[ending](
        file,
        name=shard.name,
        location=f"{source}/",
        number=number,
        offset=offset,
        size=shard.size,
        largest_record=largest_record,
    )


def _ending(name: str) -> str | None:
    return next((ending for ending in _READERS if name.lower().endswith(ending)), None)


class _Bounded(io.RawIOBase):
    """A file, read from a byte on. It fetches ``size`` bytes, and more only when a read goes beyond them."""

    def __init__(self, source: Source, name: str, offset: int, size: int) -> None:
        self._source = source
        self._name = name
        self._end = offset + size
        self._file = buffered(source.open(name, offset, size))
        self._is_bounded = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        if count == 0 and self._is_bounded and len(buffer):
            self._file.close()
            self._file, self._is_bounded = buffered(self._source.open(self._name, self._end)), False
            count = self._file.readinto(buffer)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class ShardSequence:
    """Maps a position in a sequence of shards to a shard and a record."""

    def __init__(self, source: Source, shards: Sequence[Shard], *, largest_record: int = LARGEST_RECORD) -> None:
        """Join the shards in this order; ``largest_record`` is the maximum size of a record, in bytes."""
        self.source = source
        self.shards = shards
        self.largest_record = largest_record
        self._ends = list(accumulate(shard.records for shard in shards))

    def __len__(self) -> int:
        """Return the number of records of all shards."""
        return self._ends[-1] if self._ends else 0

    def find(self, position: int) -> tuple[Shard, int]:
        """Return the shard of a record, and the record's number in it."""
        place = bisect_right(self._ends, position)
        shard = self.shards[place]
        return shard, position - (self._ends[place] - shard.records)

    @contextlib.contextmanager
    def cursor(self, *, stop: int | None = None) -> Iterator[Cursor]:
        """Yield a cursor, and close it at the end. ``stop`` bounds the prefetch: the first position not to read."""
        cursor = Cursor(self, stop=len(self) if stop is None else stop)
        try:
            yield cursor
        finally:
            cursor.close()


class Cursor:
    """Reads records of a sequence, cheapest in ascending order, with at most one file open."""

    def __init__(self, sequence: ShardSequence, *, stop: int) -> None:
        """Begin without an open file."""
        self._sequence = sequence
        self._stop = stop
        self._shard: Shard | None = None
        self._reader: RecordReader | None = None

    def read(self, position: int) -> RawRecord:
        """Return the record at a position; raise DataError if it cannot be read or the shard differs from the index."""
        shard, number = self._sequence.find(position)
        reader = self._reader_at(shard, number, position)
        while reader.number < number:
            if reader.skip() is None:
                raise self._ended(shard, reader)
        record = reader.read()
        if record is None:
            raise self._ended(shard, reader)
        return record

    def close(self) -> None:
        """Close the file."""
        if self._reader is not None:
            self._reader.close()
        self._reader = self._shard = None

    def _reader_at(self, shard: Shard, number: int, position: int) -> RecordReader:
        """Return a reader of the shard, positioned at the record or before it."""
        marked, offset = shard.mark_before(number)
        reader = self._reader
        if reader is not None and shard is self._shard and reader.number <= number:
            is_near = reader.number >= marked or offset - reader.offset < _WORTH_A_SEEK
            if is_near:
                return reader
        self.close()
        last = min(number + max(self._stop - position, 1), shard.records) - 1
        self._reader = reader = open_reader(
            self._sequence.source,
            shard.blob,
            number=marked,
            offset=offset,
            wanted=shard.mark_after(last) - offset,
            largest_record=self._sequence.largest_record,
        )
        self._shard = shard
        return reader

    def _ended(self, shard: Shard, reader: RecordReader) -> DataError:
        return DataError(
            f"{shard.name} in {self._sequence.source} ends after {reader.number} records, and has {shard.records} in "
            "the index: it changed after the index was written; restore it, or write the index anew and start a new run"
        )
