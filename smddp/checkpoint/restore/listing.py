"""The checkpoints of a location and the status of each: valid, damaged or incomplete. Only a deep check imports torch.

``smddp.checkpoint.restore.reader`` reads a checkpoint to resume from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from smddp.checkpoint.format.manifest import Manifest, NewerFormatError
from smddp.checkpoint.format.names import MANIFEST_NAME
from smddp.checkpoint.stores import open_store
from smddp.checkpoint.stores.directory_errors import MISSING
from smddp.checkpoint.stores.store import Store, StoreError
from smddp.errors import CheckpointError
from smddp.storage.parallel import in_parallel

_Result = TypeVar("_Result")


@dataclass(kw_only=True, slots=True, frozen=True)
class CheckpointInfo:
    """A checkpoint and its status."""

    step: int
    path: str
    status: Literal["valid", "incomplete", "damaged", "newer", "unreadable"]
    """Incomplete: an interrupted save without a manifest. Damaged: the manifest or a file is not as it was written.
    Newer: a newer smddp wrote the checkpoint. Unreadable: this user may not read it; only the command line shows this
    status, and functions raise the error."""
    reason: str
    """The reason why it is not valid; empty if it is."""
    manifest: Manifest | None
    """The manifest; None if it is absent or invalid."""

    @property
    def valid(self) -> bool:
        """Whether all verified bytes are as they were written."""
        return self.status == "valid"


def list_checkpoints(location: str | os.PathLike[str], *, deep: bool = True) -> list[CheckpointInfo]:
    """List all checkpoints of a location, with their status.

    Args:
        location: A directory, or ``s3://bucket/prefix``.
        deep: Verify every byte; otherwise the manifests, and the sizes of all files.

    Returns:
        One entry per checkpoint, oldest first; none if the directory does not exist.

    Raises:
        StoreError, OSError: The location cannot be read.
    """
    store = open_store(location)
    return [inspect(store, step, deep=deep) for step in store.steps()]


def inspect(store: Store, step: int, *, deep: bool = True) -> CheckpointInfo:
    """Verify one checkpoint in little memory: every byte if `deep`, otherwise the manifest and the sizes of all files.

    Raise StoreError or OSError if the store fails, which says nothing about the checkpoint.
    """
    info, _ = examine(store, step, partial(_verify if deep else check_sizes, store))
    return info


def inspect_each_alone(store: Store, step: int, *, deep: bool = True) -> CheckpointInfo:
    """Verify one checkpoint of a list. Return "unreadable" where `inspect` raises, except for transient errors."""
    try:
        return inspect(store, step, deep=deep)
    except (StoreError, OSError) as error:
        if isinstance(error, StoreError) and error.transient:
            raise
        return CheckpointInfo(step=step, path=store.path(step), status="unreadable", reason=str(error), manifest=None)


def examine(store: Store, step: int, look: Callable[[Manifest], _Result]) -> tuple[CheckpointInfo, _Result | None]:
    """Return the status of a checkpoint, and the result of `look` if it is valid.

    `look` reads the files that the manifest names. It raises CheckpointError if one is missing or changed.
    """
    found = partial(CheckpointInfo, step=step, path=store.path(step))
    data = manifest = None
    try:
        data = store.read_manifest(step)
        if data is None:
            reason = f"it has no {MANIFEST_NAME}: its save was interrupted"
            return found(status="incomplete", reason=reason, manifest=None), None
        manifest = Manifest.from_json(data)
        if manifest.step != step:
            raise CheckpointError(f"its {MANIFEST_NAME} is that of step {manifest.step}")
        result = look(manifest)
        return found(status="valid", reason="", manifest=manifest), result
    except NewerFormatError as error:
        return found(status="newer", reason=str(error), manifest=None), None
    except StoreError:
        raise
    except CheckpointError as error:
        reason = str(error)
    except OSError as error:
        if error.errno not in MISSING:  # a failing disk, for instance, does not make the checkpoint damaged
            raise
        reason = str(error)
    if manifest is not None and store.read_manifest(step) != data:
        return examine(store, step, look)  # it was removed or saved again during the look
    return found(status="damaged", reason=reason, manifest=manifest), None


def check_sizes(store: Store, manifest: Manifest) -> None:
    """Verify that all files of a manifest exist with their sizes. Raise CheckpointError with only the reason if not."""
    at = partial(store.size, manifest.step, manifest.directory)
    sizes = in_parallel([partial(at, name) for name in manifest.files], threads=store.readers)
    for (name, record), size in zip(manifest.files.items(), sizes, strict=True):
        if size is None:
            raise CheckpointError(f"{name} is missing")
        if size != record.size:
            raise CheckpointError(f"{name} has {size} bytes instead of {record.size}")


def _verify(store: Store, manifest: Manifest) -> None:
    from smddp.checkpoint.restore.verified import VerifiedFiles  # loads torch, which takes seconds

    check_sizes(store, manifest)
    VerifiedFiles(store, manifest).verify()
