"""Restores one checkpoint on all ranks, or on none.

Notes on the order, each step agreed by all ranks before the next:
  1. Rank 0 reads and verifies the checkpoint.
  2. Rank 0 broadcasts it to the other ranks.
  3. Every rank checks that it fits. Nothing has changed until then, so an error on any rank leaves all as they were.
  4. Every rank loads it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import torch

from smddp.checkpoint.changed_hyperparameters import differing
from smddp.checkpoint.format.manifest import Manifest
from smddp.checkpoint.restore.reader import Loaded, read_newest
from smddp.checkpoint.restore.restoring import RANKS, RNG, Restoration, Stateful
from smddp.checkpoint.stores.store import Store
from smddp.distributed import Ranks

logger = logging.getLogger(__name__)

_Layouts = dict[str, dict[str, tuple[torch.dtype, tuple[int, ...]]]]


def restore_newest(
    store: Store,
    ranks: Ranks,
    *,
    state: Mapping[str, Stateful],
    per_rank: Mapping[str, Stateful],
    hyperparameters: Mapping[str, Any],
) -> Manifest | None:
    """Restore the newest valid checkpoint, and return its manifest; None if there is no checkpoint. Collective.

    The rank that fails raises its own error, and the other ranks raise PeerFailedError.
    """

    def read() -> Loaded | None:
        return _read(store, {*state, *per_rank, RANKS, RNG}, hyperparameters) if ranks.is_main else None

    loaded = _share(ranks, ranks.agree(read))
    if loaded is None:
        return None
    restoration = ranks.agree(lambda: Restoration(loaded, state=state, per_rank=per_rank, rank=ranks.rank))
    ranks.agree(restoration.check)  # note 3
    ranks.agree(restoration.apply)
    return loaded.manifest


def _read(store: Store, parts: set[str], hyperparameters: Mapping[str, Any]) -> Loaded | None:
    started = time.monotonic()
    loaded = read_newest(store, parts)
    if loaded is None:
        logger.info("there is no checkpoint in %s: starting from the beginning", store)
        return None
    manifest, seconds = loaded.manifest, time.monotonic() - started
    path = store.path(manifest.step)
    logger.info("read %s: %.1f MB, every byte verified, in %.2f s", path, manifest.size / 1e6, seconds)
    for name, old, new in differing(manifest.hyperparameters, hyperparameters):
        logger.warning("%s was %s when the checkpoint was saved, and now is %s", name, old, new)
    return loaded


def _share(ranks: Ranks, read: Loaded | None) -> Loaded | None:
    """Broadcast the checkpoint that rank 0 read."""
    description = ranks.from_rank(0, None if read is None else (read.manifest, read.skeletons, _layouts(read)))
    if description is None:
        return None
    manifest, skeletons, layouts = description
    loaded = read or Loaded(
        manifest=manifest,
        skeletons=skeletons,
        tensors={
            part: {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in each.items()}
            for part, each in layouts.items()
        },
    )
    ranks.broadcast(tensor for each in loaded.tensors.values() for tensor in each.values())
    return loaded


def _layouts(loaded: Loaded) -> _Layouts:
    return {
        part: {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        for part, tensors in loaded.tensors.items()
    }
