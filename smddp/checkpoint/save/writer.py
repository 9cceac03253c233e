"""Files that lie in memory, written to a store and hashed on the way, while training goes on.

Writing, hashing and training go on side by side: the first two let go of the GIL, and each of them reads the memory by
itself.
"""

from __future__ import annotations

import threading
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
        store: where to.
        step: the step they belong to.
        directory: that of the attempt.
        files: what to write; it must not change meanwhile.

    Returns:
        What was written, by the file's name.

    Raises:
        OSError, StoreError: a file could not be written.
    """
    digests: dict[str, FileDigests] = {}
    # A daemon, so that a disk that hangs does not keep the process alive.
    hashing = threading.Thread(target=_hash, args=(files, digests), name="smddp-checkpoint-hash", daemon=True)
    try:
        hashing.start()
    except RuntimeError:  # Python ends, and lets no thread begin any more
        _hash(files, digests)
    try:
        for file in files:
            store.write(step, directory, file.name, [file.content])
    finally:
        if hashing.ident is not None:
            hashing.join()
    return {file.name: WrittenFile(size=file.layout.size, digests=digests[file.name]) for file in files}


def _hash(files: Sequence[StagedFile], digests: dict[str, FileDigests]) -> None:
    for file in files:
        digests[file.name] = FileDigests(
            header=xxhash.xxh3_128_hexdigest(file.layout.header),
            tensors={
                entry.name: xxhash.xxh3_128_hexdigest(file.content[entry.start : entry.start + entry.size])
                for entry in file.layout.entries
            },
        )
