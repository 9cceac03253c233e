"""Copy a whole checkpoint from a directory to another store, without loading it into memory."""

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
    """Return the names in `among` that the store lacks, or stores in another size; one request for each name.

    `committed` is the checkpoint's manifest, whose own name may be in `among`.
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
    """Copy the files that the target lacks, then commit `committed` in place of the target's manifest of this step.

    Raise CheckpointError or OSError if the source no longer has a file, or the target refuses it.
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
    """Map a file into memory. The mapping, and a file removed meanwhile, last until the last view of it is gone."""
    if path.stat().st_size == 0:
        return []
    with path.open("rb") as file:
        return [memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))]
