"""A dataset of shards: records of tar files and of JSON lines, decoded to samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from smddp.data.formats.record import LARGEST_RECORD, RawRecord
from smddp.data.shards.index import ShardIndex
from smddp.data.shards.sequence import ShardSequence
from smddp.data.source import Source, open_source
from smddp.errors import DataError

WINDOW = 2048
"""Records that one is shuffled among by default; they lie in memory, over all ranks."""

Decode = Callable[[dict[str, Any]], Any]
"""Makes a sample of a record."""


class ShardedDataset(IterableDataset[Any]):
    """The records of ``*.tar`` and ``*.jsonl`` files in a directory or below a prefix in S3.

    A record of JSON lines is the line's object. One of a tar file is, by webdataset's convention, what its members with
    the same stem hold: ``{"__key__": "000123", "jpg": b"...", "cls": b"7"}``.

    Iterating gives all samples once, as they lie; with a DataLoader's workers each gives its part. To train on several
    ranks, and to resume, give a DataLoader its `decoder` and a `ShardOrder`.

    Examples:
        The Trainer does that by itself::

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
        """Use the shards at a location. They are looked at when `index` is asked for.

        Args:
            location: A directory, ``s3://bucket/prefix``, or a source of your own.
            decode: Makes a sample of a record; it runs in the loader's workers. None gives the record itself.
            window: Records among which one is shuffled, over all lanes. Each rank holds its part of them in memory.
                Where each host has a part of its own, it is that of each host.
            lanes: Streams that are read at a time, over all ranks; it divides the global batch. A rank reads but its
                own where the number of ranks divides it, else some records in vain. The default is the greatest common
                divisor of the global batch and 48; without a shuffle, 1. Where each host has a part of its own, ranks,
                streams and global batch are those of each host.
            largest_record: The most bytes of a record; what is larger is an error and never read into memory.

        Raises:
            DataError: The location names no directory or prefix.
            ValueError: A number is out of its range.
        """
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
        """What is known of the shards; it is read, or made, when it is asked for the first time.

        Raises:
            DataError: There are no shards, or one is damaged or cannot be read.
        """
        if self._index is None:
            self._index = ShardIndex.of(self.source, largest_record=self.largest_record)
        return self._index

    def adopt(self, index: ShardIndex) -> None:
        """Use the index that another rank has made, instead of making it again.

        Raises:
            DataError: The shards here are others.
        """
        if index != self._index:  # taken over and checked before, for training and now for evaluation
            index.check(self.source)
            self._index = index

    def __len__(self) -> int:
        """Return how many records all shards have."""
        return self.index.records

    def __iter__(self) -> Iterator[Any]:
        """Give the samples of all records, or of a DataLoader worker's part of them.

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
    """Makes samples of raw records: for a DataLoader whose batch sampler is an order of shards."""

    def __init__(self, decode: Decode | None) -> None:
        """Decode with this function; None gives the record itself."""
        self._decode = decode

    def __getitem__(self, record: RawRecord) -> Any:
        """Decode a record.

        Raises:
            DataError: It cannot be decoded.
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
