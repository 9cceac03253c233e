"""Shards in a row as one long sequence of records, each readable by its position."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from smddp.data.formats.record import LARGEST_RECORD, RawRecord, RecordReader
from smddp.data.shards.index import Shard
from smddp.data.shards.opening import open_reader
from smddp.data.source import Source
from smddp.errors import DataError

_WORTH_A_SEEK = 8 * 2**20
"""Bytes. Skipping fewer bytes is faster than opening a new S3 stream."""


class ShardSequence:
    """Maps a position in a sequence of shards to a shard and a record."""

    def __init__(self, source: Source, shards: Sequence[Shard], *, largest_record: int = LARGEST_RECORD) -> None:
        """Put the shards in this order, one after the other; ``largest_record`` is the most bytes of a record."""
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
            "the index: it changed since that was made; restore it, or write the index anew and start a new run"
        )
