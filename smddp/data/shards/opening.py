"""Chooses the reader of a shard by its file extension."""

from __future__ import annotations

import io
from typing import Any, BinaryIO, cast

from smddp.data.formats.json_lines import JsonLinesReader
from smddp.data.formats.record import LARGEST_RECORD, RecordReader
from smddp.data.formats.tar import TarReader
from smddp.data.source import Blob, DirectorySource, Source
from smddp.errors import DataError
from smddp.storage.byte_stream import buffered

_READERS: dict[str, type[TarReader] | type[JsonLinesReader]] = {".tar": TarReader, ".jsonl": JsonLinesReader}
_BEYOND = 1 << 16  # bytes fetched after the last wanted record: the next header, which shows where it ends
_COMPRESSED = (".gz", ".tgz", ".zst", ".bz2", ".xz", ".lz4")


def list_shards(source: Source) -> list[Blob]:
    """Return the shards of a source, sorted by name; raise DataError if there are none or some are compressed."""
    blobs = source.list()
    for blob in blobs:
        name = blob.name.lower()
        if name.endswith(_COMPRESSED) and (".tar." in name or ".jsonl." in name or name.endswith(".tgz")):
            raise DataError(
                f"{blob.name} in {source} is compressed: reading could not begin in its middle; decompress the shards "
                "(images are compressed in themselves)"
            )
    shards = [blob for blob in blobs if _ending(blob.name)]
    if not shards:
        raise DataError(f"there are no shards in {source}, among {len(blobs)} files: shards are *.tar and *.jsonl")
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
    """A file from a byte on that fetches its first ``size`` bytes, and the rest only when read beyond them."""

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
