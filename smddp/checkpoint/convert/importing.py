"""Import a foreign state as a checkpoint that a run can resume from."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from smddp.checkpoint.checkpointer import Checkpointer
from smddp.checkpoint.convert.sources import StateSource, find_source
from smddp.checkpoint.convert.torch_files import WEIGHTS_NAMES
from smddp.checkpoint.format.manifest import is_part_name
from smddp.checkpoint.retention import Retention
from smddp.checkpoint.run_state import RANKS, RNG
from smddp.checkpoint.stores import open_store
from smddp.checkpoint.stores.opening import split
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)

_KEEP_ALL = Retention(last=10**12)


class _Part:
    """A part of an existing state, for saving only."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""
        return self._state

    def load_state_dict(self, state: Any, /) -> None:
        """Refuse to load."""
        raise NotImplementedError


def import_checkpoint(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], *, step: int = 0, epoch: int = 0
) -> list[str]:
    """Convert a foreign state to a checkpoint. Other checkpoints at the destination stay.

    The source is a model's state_dict, or a dict of state_dicts by part: ``{"model": …, "optimizer": …}``. The usual
    names ``model_state_dict``, ``state_dict``, ``optimizer_state_dict`` and so on are recognised. Numbers and texts
    beside the parts, such as an epoch, are left out with a warning. The source is not trusted: no code in it is run.

    Call it in one process, without a process group.

    Args:
        source: A file of torch.save or safetensors, a SageMaker ``model.tar.gz``, or one of these in S3; a directory
            with a model; or a directory of torch.distributed.checkpoint (DCP).
        destination: The store for checkpoints: a directory, or ``s3://bucket/prefix``.
        step: The optimizer steps taken.
        epoch: The current epoch.

    Returns:
        The names of the checkpoint's parts.

    Raises:
        CheckpointError: The source is absent, damaged, or not safe to read; or the checkpoint exists, or cannot be
            written.
        ValueError: The step, the epoch or the destination is invalid.
        OSError: The source cannot be read.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise CheckpointError("import a checkpoint in one process, before the ranks of a training are joined")
    found = find_source(source)
    if found.kind == "checkpoint":
        raise _nothing_foreign(found)
    location, inside = split(destination)
    if inside is not None:
        raise CheckpointError(
            f"{destination} is the name of one checkpoint: give the location that it lies in, {location}, and its step "
            "apart"
        )
    parts, rest = found.read_foreign()
    rest += [name for name in parts if not is_part_name(name) or name in (RANKS, RNG)]
    state = {name: _Part(value) for name, value in parts.items() if name not in rest}
    if not state:
        raise CheckpointError(f"{source} has no part that a checkpoint could have, only {', '.join(rest)}")
    store = open_store(destination)
    if step in store.steps() and store.read_manifest(step) is not None:
        raise CheckpointError(f"there is a checkpoint {store.path(step)} already: remove it, or give another step")
    if rest:
        logger.warning("left out %s of %s: no part of a run's state", ", ".join(map(str, rest)), source)
    with Checkpointer(destination, state, keep=_KEEP_ALL) as checkpointer:
        checkpointer.save(step, epoch=epoch)
    return sorted(state)


def _nothing_foreign(source: StateSource) -> CheckpointError:
    """Return the error for a source that is a checkpoint store or empty."""
    if source.step is not None or next(open_store(source.location).newest_first(), None) is not None:
        return CheckpointError(f"{source} is a checkpoint already: copy its directory")
    return CheckpointError(
        f"{source} has nothing to import: a directory has one of {', '.join(WEIGHTS_NAMES)}, or what DCP saved"
    )
