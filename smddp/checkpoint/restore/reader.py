"""From a place with checkpoints to the newest that is valid to the last byte, or to one by its step."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from smddp.checkpoint.format import strict_json
from smddp.checkpoint.format.manifest import Manifest
from smddp.checkpoint.format.names import STATE_NAME
from smddp.checkpoint.format.state_tree import unflatten
from smddp.checkpoint.restore.listing import check_sizes, examine
from smddp.checkpoint.restore.settled import Look, look_until_settled
from smddp.checkpoint.restore.verified import VerifiedFiles
from smddp.checkpoint.stores.store import Store, step_name
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True, frozen=True)
class Loaded:
    """A checkpoint, verified, each part of its state taken apart as by `smddp.checkpoint.format.state_tree`."""

    manifest: Manifest
    skeletons: Mapping[str, Any]
    """All but the tensors of each part, by the part's name."""
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    """The tensors of each part that was asked for, by the part's name and theirs. Each has a storage of its own."""

    def unflatten(self, part: str) -> Any:
        """Put a part together, as its state_dict() gave it.

        Raises:
            CheckpointError: It is not there, or its tensors were not asked for.
        """
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
    """Read one checkpoint.

    Args:
        store: Where it lies.
        step: Its step.
        parts: The parts of the state whose tensors are wanted; all if None.

    Raises:
        CheckpointError: There is none, or it is not valid.
        StoreError, OSError: It cannot be read, whether it is valid or not.
    """
    info, loaded = examine(store, step, partial(_load, store, parts=parts))
    if loaded is None:
        raise CheckpointError(f"cannot read the checkpoint {info.path}: {info.reason}")
    return loaded


def read_newest(store: Store, parts: Collection[str] | None = None) -> Loaded | None:
    """Read the newest valid checkpoint. For each newer one that is passed over a warning says why.

    Args:
        store: Where they lie.
        parts: The parts of the state whose tensors are wanted; all if None. Only their files are verified.

    Returns:
        It; None if no checkpoint was ever finished here.

    Raises:
        CheckpointError: There are checkpoints, but none is valid, or the newest needs a newer smddp, or they are
            removed faster than they can be read.
        StoreError, OSError: One cannot be read, whether it is valid or not.
    """
    told: set[tuple[int, str]] = set()

    def look() -> Look[Loaded]:
        passed_over: dict[int, str | None] = {}
        for step in store.newest_first():
            info, loaded = examine(store, step, partial(_load, store, parts=parts))
            if loaded is not None:
                return Look(found=loaded, passed_over=passed_over)
            if info.status == "newer":
                raise CheckpointError(f"cannot read the checkpoint {info.path}: {info.reason}")
            if (step, info.reason) not in told:
                told.add((step, info.reason))
                logger.warning("skipped the checkpoint %s: %s", info.path, info.reason)
            passed_over[step] = info.reason if info.status == "damaged" else None
        return Look(found=None, passed_over=passed_over)

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
        skeletons = dict(strict_json.loads(files.state()).items())
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{STATE_NAME} is not the JSON object that it should be: {error}") from error
    wanted = {*skeletons, *manifest.parts} if parts is None else set(parts) & set(skeletons)
    return Loaded(manifest=manifest, skeletons=skeletons, tensors=files.tensors(sorted(wanted)))
