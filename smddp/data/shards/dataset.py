"""A dataset of shards: tar and JSON lines files whose records are decoded into samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from smddp.data.formats.record import LARGEST_RECORD, RawRecord
from smddp.data.shards.index import ShardIndex
from smddp.data.shards.shard import ShardSequence
from smddp.data.source import Source, open_source
from smddp.errors import DataError
from smddp.whole_numbers import as_whole_number, as_whole_numbers

WINDOW = 2048
"""The default shuffle window, in records over all ranks; the window is kept in memory."""

Decode = Callable[[dict[str, Any]], Any]
"""Turns a record into a sample."""


class ShardedDataset(IterableDataset[Any]):
    """The records of ``*.tar`` and ``*.jsonl`` files in a directory or below a prefix in S3.

    A record of JSON lines is the line's object. A record of a tar file is, by webdataset's convention, a dict of the
    members with the same stem: ``{"__key__": "000123", "jpg": b"...", "cls": b"7"}``.

    Iterating yields all samples once, in stored order; each worker of a DataLoader yields its part. To train on
    several ranks, and to resume, give a DataLoader its `decoder` and a `ShardOrder`.

    Examples:
        The Trainer builds the DataLoader itself:

            data = ShardedDataset("s3://bucket/imagenet", decode=decode)
            loader = trainer.loader(data, batch_size=256, num_workers=4)
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | Source,
        *,
        decode: Decode | None = None,
        window: int = WINDOW,
        lanes: int | None = None,
        largest_record: int = LARGEST_RECORD,
    ) -> None:
        """Use the shards at a location. `index` lists and reads them when first used.

        Args:
            location: A directory, ``s3://bucket/prefix``, or a source of your own.
            decode: Turns a record into a sample, in the loader's workers. None returns the record itself.
            window: The shuffle window in records, over all lanes. Each rank keeps its part of the window in memory.
                With data sharded by host, each host has its own window of this size.
            lanes: Streams read at a time, over all ranks; must divide the global batch. If the number of ranks divides
                it, each rank reads only its own streams; otherwise some records are read by several ranks. The
                default is the greatest common divisor of the global batch and 48; without a shuffle, 1. With data
                sharded by host, count ranks, streams and global batch of one host.
            largest_record: The most bytes of a record. A larger one is an error, and never read into memory.

        Raises:
            DataError: The location is neither a directory nor an S3 prefix.
            ValueError: A number is out of its range.
        """
        window, largest_record = as_whole_numbers(window=window, largest_record=largest_record)
        lanes = None if lanes is None else as_whole_number("lanes", lanes)
        if window < 1:
            raise ValueError(f"window is {window}: a record is shuffled among 1 or more")
        if lanes is not None and lanes < 1:
            raise ValueError(f"lanes is {lanes}: at least one stream is read")
        if largest_record < 1:
            raise ValueError(f"largest_record is {largest_record}: a record has at least one byte")
        self.source = location if isinstance(location, Source) else open_source(location)
        self.decoder = RecordDecoder(decode)
        self.window = window
        self.lanes = lanes
        self.largest_record = largest_record
        self._index: ShardIndex | None = None

    @property
    def index(self) -> ShardIndex:
        """The index of the shards, read or built at the first use.

        Raises:
            DataError: There are no shards, or one is damaged or cannot be read.
        """
        if self._index is None:
            self._index = ShardIndex.of(self.source, largest_record=self.largest_record)
        return self._index

    def adopt(self, index: ShardIndex) -> None:
        """Use another rank's index instead of building it again.

        Raises:
            DataError: The shards here differ from the index.
        """
        if index != self._index:  # an equal index was checked before: training and evaluation share a dataset
            index.check(self.source)
            self._index = index

    def __len__(self) -> int:
        """Return the number of records of all shards."""
        return self.index.records

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of all records, or of this DataLoader worker's part.

        Raises:
            DataError: A record cannot be read or decoded.
        """
        sequence = ShardSequence(self.source, self.index.shards, largest_record=self.largest_record)
        worker = get_worker_info()
        part, parts = (worker.id, worker.num_workers) if worker else (0, 1)
        start, stop = len(sequence) * part // parts, len(sequence) * (part + 1) // parts
        with sequence.cursor(stop=stop) as cursor:
            for position in range(start, stop):
                yield self.decoder[cursor.read(position)]


class RecordDecoder(Dataset[Any]):
    """Decodes raw records into samples, for a DataLoader whose batch sampler is a `ShardOrder` or a `PipeOrder`."""

    def __init__(self, decode: Decode | None) -> None:
        """Decode with this function; None returns the record itself."""
        self._decode = decode

    def __getitem__(self, record: RawRecord) -> Any:
        """Decode a record.

        Raises:
            DataError: The record cannot be decoded.
        """
        if not isinstance(record, RawRecord):
            raise TypeError(
                f"shards have no sample {record!r}: they are read in sequence; give the DataLoader a ShardOrder as its "
                "batch_sampler"
            )
        fields = record.parse()
        if self._decode is None:
            return fields
        try:
            return self._decode(fields)
        except Exception as error:
            raise DataError(f"{record}: decode raised {type(error).__name__}: {error}") from error
