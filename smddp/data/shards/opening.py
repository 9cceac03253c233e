"""Which reader reads a shard: by the end of its name."""

from __future__ import annotations

from smddp.data.formats.json_lines import JsonLinesReader
from smddp.data.formats.record import LARGEST_RECORD, RecordReader
from smddp.data.formats.tar import TarReader
from smddp.data.source import Blob, Source
from smddp.errors import DataError

_READERS: dict[str, type[TarReader] | type[JsonLinesReader]] = {".tar": TarReader, ".jsonl": JsonLinesReader}
_COMPRESSED = (".gz", ".tgz", ".zst", ".bz2", ".xz", ".lz4")


def list_shards(source: Source) -> list[Blob]:
    """Give the shards of a source, sorted by name; what else lies there is left alone.

    Raises:
        DataError: There are none, or some are compressed.
    """
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
    source: Source, shard: Blob, *, number: int = 0, offset: int = 0, largest_record: int = LARGEST_RECORD
) -> RecordReader:
    """Open a shard to read its records in sequence.

    Args:
        source: Where it lies.
        shard: Its name, and its size, which it must still have.
        number: The record to begin at.
        offset: The byte at which that begins.
        largest_record: The most bytes of a record.

    Raises:
        DataError: It cannot be opened.
    """
    ending = _ending(shard.name)
    assert ending is not None, shard
    return _READERS[ending](
        source.open(shard.name, offset),
        name=shard.name,
        location=f"{source}/",
        number=number,
        offset=offset,
        size=shard.size,
        largest_record=largest_record,
    )


def _ending(name: str) -> str | None:
    return next((ending for ending in _READERS if name.lower().endswith(ending)), None)
