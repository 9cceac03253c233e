"""From the state of a run to a durable checkpoint. On rank 0 only."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import torch

import smddp
from smddp.checkpoint.manifest import STATE_NAME, TENSORS_SUFFIX, Manifest
from smddp.checkpoint.store import DirectoryStore
from smddp.checkpoint.tensors import encode
from smddp.checkpoint.tree import flatten
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)


def write(
    store: DirectoryStore,
    state: Mapping[str, Any],
    *,
    step: int,
    epoch: int,
    world_size: int,
    metrics: Mapping[str, float],
) -> Manifest:
    """Write a checkpoint; it is durable when this returns.

    Args:
        store: where to. It must have no valid checkpoint of this step: what is there of it is replaced.
        state: what each part's state_dict() gave, by the part's name.
        step: optimizer steps taken.
        epoch: the epoch under way.
        world_size: how many processes train.
        metrics: what to remember with it.

    Raises:
        CheckpointError: something in the state cannot be saved, and nothing was written; or it could not be
            written, and what was written of it is removed again. Other checkpoints are as they were.
    """
    skeletons: dict[str, Any] = {}
    files = {}
    for name, part in state.items():
        skeletons[name], tensors = flatten(part, path=name)
        if tensors:
            files[name + TENSORS_SUFFIX] = encode(tensors)
    text = json.dumps(skeletons, allow_nan=False, separators=(",", ":")).encode()
    files[STATE_NAME] = iter([memoryview(text)])
    try:
        store.create(step)
        manifest = Manifest(
            step=step,
            epoch=epoch,
            world_size=world_size,
            saved_at=datetime.now(timezone.utc),
            smddp_version=smddp.__version__,
            torch_version=str(torch.__version__),
            files={name: store.write(step, name, pieces) for name, pieces in files.items()},
            metrics=metrics,
        )
        store.commit(step, manifest.to_json())
    except Exception as error:
        _discard(store, step)
        raise CheckpointError(
            f"could not write the checkpoint {store.path(step)}: {type(error).__name__}: {error}; "
            "earlier ones are as they were"
        ) from error
    return manifest


def _discard(store: DirectoryStore, step: int) -> None:
    """Give the space back; what cannot be removed now has no manifest and is removed by a later save."""
    try:
        store.remove(step)
    except OSError as error:
        logger.warning("could not remove the unfinished checkpoint %s: %s", store.path(step), error)
