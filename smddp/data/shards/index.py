"""The index of shards: the number of records of each shard, and the bytes at which some of them begin (marks).

With an index, any record is found by a seek and at most `MARK_EVERY` skipped records. The index is read from
``shards.json`` beside the shards, or built by reading through them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from smddp.data.formats.record import LARGEST_RECORD
from smddp.data.formats.tar import TarReader
from smddp.data.shards.shard import MARK_EVERY, Shard, open_reader, select_shards
from smddp.data.source import Blob, Source
from smddp.display_text import counted
from smddp.errors import DataError

logger = logging.getLogger(__name__)

INDEX_NAME = "shards.json"
"""The index file beside the shards."""

_VERSION = 1
_LARGEST_INDEX = 2**30
"""Bytes, enough for some 3 * 10**9 records."""
_SCANNERS = 8  # shards scanned at a time


@dataclass(kw_only=True, slots=True, frozen=True)
class ShardIndex:
    """All shards of a source, by name."""

    shards: tuple[Shard, ...]
    missing: tuple[str, ...] = field(default=(), compare=False)
    """Shards in ``shards.json`` that are missing here; another host may have them."""

    @classmethod
    def of(cls, source: Source, *, largest_record: int = LARGEST_RECORD) -> ShardIndex:
        """Index a source from its ``shards.json``, and scan the shards that are not in it.

        Args:
            source: The location of the shards.
            largest_record: The most bytes of a record.

        Raises:
            DataError: There are no shards, or a shard is cut, damaged or unreadable, has a record that is too large,
                or differs in size from ``shards.json``.
        """
        files = source.list()
        blobs = select_shards(files, source)
        known = _read(files, source)
        for blob in blobs:
            if blob.name in known and known[blob.name].size != blob.size:
                raise DataError(
                    f"{blob.name} in {source} has {blob.size} bytes, and {known[blob.name].size} by the {INDEX_NAME} "
                    f"there: restore it, or, if it was changed on purpose, remove {INDEX_NAME} and write it anew"
                )
        unknown = [blob for blob in blobs if blob.name not in known]
        missing = tuple(sorted(known.keys() - {blob.name for blob in blobs}))
        if known and unknown:
            logger.warning(
                "%s in %s does not know %d of %d shards, %s for one: they are read through; write it anew",
                INDEX_NAME,
                source,
                len(unknown),
                len(blobs),
                unknown[0].name,
            )
        if missing:
            logger.warning(
                "%s that %s knows %s not in %s, %s for one",
                counted(len(missing), "shard"),
                INDEX_NAME,
                "is" if len(missing) == 1 else "are",
                source,
                missing[0],
            )
        if unknown:
            known.update((shard.name, shard) for shard in _scan_all(source, unknown, largest_record))
        return cls(shards=tuple(known[blob.name] for blob in blobs), missing=missing)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShardIndex:
        """Build an index from the output of `to_json`.

        Raises:
            DataError: The value is not an index of this version.
        """
        if not isinstance(value, Mapping) or value.get("version") != _VERSION:
            raise DataError(f"it is no index of shards of version {_VERSION}")
        try:
            every = {"mark_every": value["mark_every"]}
            shards = tuple(Shard(**{**every, **entry, "marks": tuple(entry["marks"])}) for entry in value["shards"])
        except (KeyError, TypeError) as error:
            raise DataError(f"the index of shards is damaged: {error}") from error
        return cls(shards=shards)

    @property
    def records(self) -> int:
        """Records of all shards."""
        return sum(shard.records for shard in self.shards)

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(shard.size for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """A digest of the shards' names, sizes and numbers of records."""
        known = [(shard.name, shard.size, shard.records) for shard in self.shards]
        return xxhash.xxh3_128_hexdigest(json.dumps(known).encode())

    def to_json(self) -> dict[str, Any]:
        """Return the index as a JSON object."""
        shards = [
            {"name": shard.name, "size": shard.size, "records": shard.records, "marks": shard.marks}
            | ({} if shard.mark_every == MARK_EVERY else {"mark_every": shard.mark_every})
            for shard in self.shards
        ]
        return {"version": _VERSION, "mark_every": MARK_EVERY, "shards": shards}

    def write(self, directory: str | os.PathLike[str]) -> Path:
        """Write ``shards.json``, atomically. The directory must be the one with the shards.

        Returns:
            The file.
        """
        path = Path(directory) / INDEX_NAME
        partial_path = path.with_name(f".{INDEX_NAME}.{os.getpid()}.partial")
        try:
            partial_path.write_text(json.dumps(self.to_json()))
            partial_path.replace(path)
        finally:
            partial_path.unlink(missing_ok=True)
        return path

    def check(self, source: Source) -> None:
        """Check that the source has all shards of the index, in the same sizes.

        Raises:
            DataError: A shard is missing, or has another size.
        """
        sizes = {blob.name: blob.size for blob in source.list()}
        for shard in self.shards:
            found = sizes.get(shard.name)
            if found != shard.size:
                what = "is missing" if found is None else f"has {found} bytes"
                raise DataError(
                    f"{shard.name} {what} in {source}, where the index has {shard.size} bytes: all ranks must see the "
                    "same shards, and nobody may write to them; restore it, or start a new run"
                )


def _read(files: Sequence[Blob], source: Source) -> dict[str, Shard]:
    """Return the shards in ``shards.json``, by name; empty if the file is missing or is not an index."""
    beside = next((blob for blob in files if blob.name == INDEX_NAME), None)
    if beside is None:
        return {}
    try:
        if beside.size > _LARGEST_INDEX:
            raise DataError(f"it has {beside.size} bytes, an index at most {_LARGEST_INDEX}")
        with contextlib.closing(source.open(INDEX_NAME)) as file:
            index = ShardIndex.from_json(json.loads(file.read(beside.size)))
    except (ValueError, RecursionError, OSError) as error:
        logger.warning("%s in %s is not used, and the shards are read through: %s", INDEX_NAME, source, error)
        return {}
    return {shard.name: shard for shard in index.shards}


def _scan_all(source: Source, blobs: Sequence[Blob], largest_record: int) -> list[Shard]:
    began = time.monotonic()
    with ThreadPoolExecutor(min(_SCANNERS, len(blobs)), thread_name_prefix="index") as threads:
        scans = [threads.submit(partial(_scan, source, blob, largest_record)) for blob in blobs]
        try:
            shards = [scan.result() for scan in scans]
        except BaseException:
            threads.shutdown(wait=True, cancel_futures=True)
            raise
    logger.info(
        "went through %s of %s in %.1f s: %s",
        counted(len(shards), "shard"),
        source,
        time.monotonic() - began,
        counted(sum(shard.records for shard in shards), "record"),
    )
    return shards


def _scan(source: Source, blob: Blob, largest_record: int) -> Shard:
    marks = []
    with contextlib.closing(open_reader(source, blob, largest_record=largest_record)) as reader:
        while (offset := reader.skip()) is not None:
            if (reader.number - 1) % MARK_EVERY == 0:
                marks.append(offset)
        if isinstance(reader, TarReader) and not reader.is_complete:
            logger.warning("%s in %s ends without a tar file's mark of its end: it may be cut", blob.name, source)
        return Shard(name=blob.name, size=blob.size, records=reader.number, marks=tuple(marks))
