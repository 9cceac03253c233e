"""Files that lie in memory, hashed and written to a store while training goes on.

Both let go of the GIL. One thread does both, one after the other: hashing takes a tenth of the time of writing, and a
thread of its own for it would take that time from the training loop where all cores are busy.
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
    """What was written of a file of tensors."""

    size: int
    """Bytes."""
    digests: FileDigests


def write(store: Store, step: int, directory: str, files: Sequence[StagedFile]) -> dict[str, WrittenFile]:
    """Write files of tensors; they are durable when this returns.

    Args:
        store: Where to.
        step: The step they belong to.
        directory: That of the attempt.
        files: What to write; it must not change meanwhile.

    Returns:
        What was written, by the file's name.

    Raises:
        OSError, StoreError: A file could not be written.
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
