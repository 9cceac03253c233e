"""Reads the newest valid checkpoint of a location, or the one of a given step. Verifies the bytes that it returns."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from smddp.checkpoint.format.manifest import STATE_NAME, Manifest, parse_json
from smddp.checkpoint.format.state_tree import unflatten
from smddp.checkpoint.restore.listing import ScanResult, check_sizes, examine, look_until_settled
from smddp.checkpoint.restore.verified import VerifiedFiles
from smddp.checkpoint.stores.store import Store, step_name
from smddp.errors import CheckpointError
from smddp.path_text import shown_path

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True, frozen=True)
class Loaded:
    """A verified checkpoint. `smddp.checkpoint.format.state_tree` splits each part into skeleton and tensors."""

    manifest: Manifest
    skeletons: Mapping[str, Any]
    """Each part without its tensors, by name."""
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    """The tensors of each requested part, by the names of the part and the tensor. Each has its own storage."""

    def unflatten(self, part: str) -> Any:
        """Return a part as its state_dict() was. Raise CheckpointError if it is absent or was not requested."""
        if part not in self.skeletons or part not in self.tensors:
            raise CheckpointError(
                f"the checkpoint of step {self.manifest.step} has no {part!r}, only {', '.join(sorted(self.tensors))}"
            )
        try:
            return unflatten(self.skeletons[part], self.tensors[part])
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{part!r} of the checkpoint of step {self.manifest.step} cannot be put together: "
                f"{type(error).__name__}: {error}"
            ) from error


def read_checkpoint(store: Store, step: int, parts: Collection[str] | None = None) -> Loaded:
    """Read one checkpoint, with the tensors of `parts`, or of all parts if None.

    Raise CheckpointError if it is absent or not valid. StoreError and OSError say nothing about its validity.
    """
    info, loaded = examine(store, step, partial(_load, store, parts=parts))
    if loaded is None:
        raise CheckpointError(f"cannot read the checkpoint {info.path}: {info.reason}")
    return loaded


def read_newest(store: Store, parts: Collection[str] | None = None) -> Loaded | None:
    """Read the newest valid checkpoint; None if no save ever finished. Log a warning for each one skipped.

    Raise CheckpointError if none is valid, a newer smddp wrote the newest, or they are removed while they are read.
    """
    # Only the files of `parts` are read and verified. An error of the store does not skip a checkpoint, which may be
    # valid: an older one would lose progress.
    told: set[tuple[int, str]] = set()

    def look() -> ScanResult[Loaded]:
        passed_over: dict[int, str | None] = {}
        for step in store.newest_first():
            info, loaded = examine(store, step, partial(_load, store, parts=parts))
            if loaded is not None:
                return ScanResult(found=loaded, passed_over=passed_over)
            if info.status == "newer":
                raise CheckpointError(f"cannot read the checkpoint {info.path}: {info.reason}")
            if (step, info.reason) not in told:
                told.add((step, info.reason))
                logger.warning("skipped the checkpoint %s: %s", shown_path(info.path), info.reason)
            passed_over[step] = info.reason if info.status == "damaged" else None
        return ScanResult(found=None, passed_over=passed_over)

    last = look_until_settled(store, look)
    damaged = [f"{step_name(step)}: {reason}" for step, reason in last.passed_over.items() if reason is not None]
    if last.found is None and damaged:
        raise CheckpointError(
            f"there are checkpoints in {store}, but none is valid ({'; '.join(damaged)}); restore one from a copy, or "
            "move them away to start anew"
        )
    return last.found


def _load(store: Store, manifest: Manifest, *, parts: Collection[str] | None) -> Loaded:
    check_sizes(store, manifest)
    files = VerifiedFiles(store, manifest)
    try:
        skeletons = dict(parse_json(files.state()).items())
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{STATE_NAME} is not the JSON object that it should be: {error}") from error
    wanted = {*skeletons, *manifest.parts} if parts is None else set(parts) & set(skeletons)
    return Loaded(manifest=manifest, skeletons=skeletons, tensors=files.tensors(sorted(wanted)))
