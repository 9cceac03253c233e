"""A whole checkpoint from a directory to another store, without the memory for it."""

from __future__ import annotations

import mmap
from collections.abc import Collection
from pathlib import Path

from smddp.checkpoint.format.manifest import Manifest
from smddp.checkpoint.format.names import MANIFEST_NAME
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.store import Store, path_in_step
from smddp.errors import CheckpointError


def missing_files(store: Store, committed: bytes, *, among: Collection[str]) -> list[str]:
    """Give those of a checkpoint's files that a store lacks, or has of another size; the manifest is one of them.

    Args:
        store: Where to look.
        committed: The bytes of its manifest.
        among: The names to look for, one request each.

    Raises:
        StoreError: The store does not say.
    """
    manifest = Manifest.from_json(committed)
    step, directory = manifest.step, manifest.directory
    missing = [
        name
        for name, record in manifest.files.items()
        if name in among and store.size(step, directory, name) != record.size
    ]
    if MANIFEST_NAME in among and store.read_manifest(step) != committed:
        missing.append(MANIFEST_NAME)
    return missing


def copy_checkpoint(source: DirectoryStore, target: Store, committed: bytes) -> None:
    """Copy the files that the target lacks, then commit them in place of whatever stands there.

    Args:
        source: Where it is.
        target: Where to.
        committed: The bytes of its manifest.

    Raises:
        CheckpointError: The source does not have it any more, or the target does not take it. OSError likewise.
    """
    manifest = Manifest.from_json(committed)
    step, directory = manifest.step, manifest.directory
    for name in missing_files(target, committed, among=manifest.files):
        path = Path(source.path(step)) / path_in_step(directory, name)
        if source.size(step, directory, name) != manifest.files[name].size:
            raise CheckpointError(f"{path} is not as it was written")
        target.write(step, directory, name, _content(path))
    target.commit(step, directory, committed, replacing=target.read_manifest(step))


def _content(path: Path) -> list[memoryview]:
    """Map a file into memory. It ends with the last view of it; a file that is removed meanwhile stays so long."""
    if path.stat().st_size == 0:
        return []
    with path.open("rb") as file:
        return [memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))]
