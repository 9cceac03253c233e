"""From a directory to the newest checkpoint that is valid to the last byte, or to a list that says what each is."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from smddp.checkpoint.manifest import MANIFEST_NAME, Manifest, NewerFormatError
from smddp.checkpoint.store import DirectoryStore
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True, frozen=True)
class CheckpointInfo:
    """A checkpoint, and whether it can be trusted."""

    step: int
    path: Path
    status: Literal["valid", "incomplete", "damaged", "newer"]
    """Incomplete: it has no manifest, because its save was interrupted; it never was a checkpoint. Damaged: it was one.
    Newer: it needs a newer smddp."""
    reason: str
    """Why it is not valid; empty if it is."""
    manifest: Manifest | None
    """What it should be; None where that cannot be read."""

    @property
    def valid(self) -> bool:
        """Whether every byte is as it was written."""
        return self.status == "valid"


def list_checkpoints(directory: str | os.PathLike[str]) -> list[CheckpointInfo]:
    """Verify all checkpoints of a directory, every byte of them.

    Returns:
        One entry a checkpoint, oldest first; none if the directory does not exist.

    Raises:
        OSError: the directory cannot be read.
    """
    store = DirectoryStore(Path(directory))
    return [inspect(store, step) for step in store.steps()]


def inspect(store: DirectoryStore, step: int) -> CheckpointInfo:
    """Verify one checkpoint, in little memory."""
    return _examine(store, step, contents=None)


def read_newest(store: DirectoryStore) -> tuple[Manifest, dict[str, torch.Tensor]] | None:
    """Read the newest valid checkpoint. For each newer one that is passed over a warning says why.

    Returns:
        Its manifest, and the verified bytes of its files by name, flat tensors of uint8; None if no checkpoint was
        ever finished here.

    Raises:
        CheckpointError: there are checkpoints, but none is valid, or the newest needs a newer smddp.
        OSError: the directory cannot be read.
    """
    damaged = []
    for step in reversed(store.steps()):
        contents: dict[str, torch.Tensor] = {}
        found = _examine(store, step, contents=contents)
        if found.valid:
            assert found.manifest is not None
            return found.manifest, contents
        if found.status == "newer":
            raise CheckpointError(f"cannot read the checkpoint {found.path}: {found.reason}")
        logger.warning("skipped the checkpoint %s: %s", found.path, found.reason)
        if found.status == "damaged":
            damaged.append(f"{found.path.name}: {found.reason}")
    if damaged:
        raise CheckpointError(
            f"there are checkpoints in {store.root}, but none is valid ({'; '.join(damaged)}); restore one from a "
            "copy, or move them away to start anew"
        )
    return None


def _examine(store: DirectoryStore, step: int, *, contents: dict[str, torch.Tensor] | None) -> CheckpointInfo:
    """Verify one checkpoint; with ``contents``, put the bytes that were verified there."""
    info = partial(CheckpointInfo, step=step, path=store.path(step), manifest=None)
    try:
        data = store.read_manifest(step)
        if data is None:
            return info(status="incomplete", reason=f"it has no {MANIFEST_NAME}: its save was interrupted")
        manifest = Manifest.from_json(data)
    except NewerFormatError as error:
        return info(status="newer", reason=str(error))
    except (CheckpointError, OSError) as error:
        return info(status="damaged", reason=str(error))
    info = partial(info, manifest=manifest)
    if manifest.step != step:
        return info(status="damaged", reason=f"its {MANIFEST_NAME} is that of step {manifest.step}")
    try:
        for name, record in manifest.files.items():
            if contents is None:
                store.verify(step, name, record)
            else:
                contents[name] = store.read(step, name, record)
    except (CheckpointError, OSError) as error:
        return info(status="damaged", reason=str(error))
    return info(status="valid", reason="")
