"""Hashes the staged files and writes them to the store, in the background thread.

Both release the GIL. One thread does both in turn: hashing takes a tenth of the time of writing, and a second thread
would take that time from training when all cores are busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from smddp.checkpoint.format.digests import FileDigests
from smddp.checkpoint.save.staging import StagedFile
from smddp.checkpoint.stores.store import Store


@dataclass(kw_only=True, slots=True, frozen=True)
class WrittenFile:
    """The size and the digests of a written file of tensors."""

    size: int
    """Bytes."""
    digests: FileDigests


def write(store: Store, step: int, directory: str, files: Sequence[StagedFile]) -> dict[str, WrittenFile]:
    """Write the bytes of files durably to an attempt's directory, and return their digests by file name.

    The memory of the files must not change until this returns.
    """
    written: dict[str, WrittenFile] = {}
    for file in files:
        digests = _hash(file)
        store.write(step, directory, file.name, [file.content])
        written[file.name] = WrittenFile(size=file.layout.size, digests=digests)
    return written


def _hash(file: StagedFile) -> FileDigests:
    return FileDigests(
        header=xxhash.xxh3_128_hexdigest(file.layout.header),
        tensors={
            entry.name: xxhash.xxh3_128_hexdigest(file.content[entry.start : entry.start + entry.size])
            for entry in file.layout.entries
        },
    )
