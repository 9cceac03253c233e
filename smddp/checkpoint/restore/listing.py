"""The checkpoints of a place, and what each is: valid, damaged, or never finished. To verify bytes alone loads torch.

Reading one to go on from it is for ``smddp.checkpoint.restore.reader``.
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
    """A checkpoint, and whether it can be trusted."""

    step: int
    path: str
    status: Literal["valid", "incomplete", "damaged", "newer", "unreadable"]
    """Incomplete: it has no manifest, because its save was interrupted; it never was a checkpoint. Damaged: it was one.
    Newer: it needs a newer smddp. Unreadable: whoever looked may not read it, so that nobody knows; only
    `inspect_each_alone` says so, others raise."""
    reason: str
    """Why it is not valid; empty if it is."""
    manifest: Manifest | None
    """What it should be; None where that cannot be read."""

    @property
    def valid(self) -> bool:
        """Whether everything that was verified is as it was written."""
        return self.status == "valid"


def list_checkpoints(location: str | os.PathLike[str], *, deep: bool = True) -> list[CheckpointInfo]:
    """Look at all checkpoints of a place.

    Args:
        location: A directory, or ``s3://bucket/prefix``.
        deep: Verify every byte; otherwise only what `inspect` says.

    Returns:
        One entry a checkpoint, oldest first; none if the directory does not exist.

    Raises:
        StoreError, OSError: The place cannot be read.
    """
    store = open_store(location)
    return [inspect(store, step, deep=deep) for step in store.steps()]


def inspect(store: Store, step: int, *, deep: bool = True) -> CheckpointInfo:
    """Verify one checkpoint, in little memory.

    Args:
        store: Where it lies.
        step: Its step.
        deep: Verify every byte; otherwise the manifest, and that all files are there with their sizes.

    Raises:
        StoreError, OSError: It cannot be read, whether it is valid or not.
    """
    info, _ = examine(store, step, partial(_verify if deep else check_sizes, store))
    return info


def inspect_each_alone(store: Store, step: int, *, deep: bool = True) -> CheckpointInfo:
    """Verify one checkpoint of several that somebody wants to see: one that may not be read does not hide the others.

    Raises:
        StoreError: The store cannot be reached now, and so neither can the others.
    """
    try:
        return inspect(store, step, deep=deep)
    except (StoreError, OSError) as error:
        if isinstance(error, StoreError) and error.transient:
            raise
        return CheckpointInfo(step=step, path=store.path(step), status="unreadable", reason=str(error), manifest=None)


def examine(store: Store, step: int, look: Callable[[Manifest], _Result]) -> tuple[CheckpointInfo, _Result | None]:
    """Say what a checkpoint is, and give what a look at its files gave if it is valid.

    Args:
        store: Where it lies.
        step: Its step.
        look: Looks at the files that a manifest names; raises CheckpointError if they are not what was written.
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
        if error.errno not in MISSING:  # a disk that fails, for instance: that does not make a checkpoint damaged
            raise
        reason = str(error)
    if manifest is not None and store.read_manifest(step) != data:
        return examine(store, step, look)  # it was removed, or saved again, while it was read
    return found(status="damaged", reason=reason, manifest=manifest), None


def check_sizes(store: Store, manifest: Manifest) -> None:
    """See that all files that a manifest names are there, with the sizes that they must have.

    Raises:
        CheckpointError: They are not; with nothing but the reason.
        StoreError, OSError: The store can't tell.
    """
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
