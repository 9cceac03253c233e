"""A checkpoint out of what others saved, for a run to go on from."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from smddp.checkpoint.checkpointer import Checkpointer
from smddp.checkpoint.convert.archives import WEIGHTS_NAMES
from smddp.checkpoint.convert.sources import StateSource, find_source
from smddp.checkpoint.format.names import is_part_name
from smddp.checkpoint.restore.restoring import RANKS, RNG
from smddp.checkpoint.retention import Retention
from smddp.checkpoint.stores import open_store
from smddp.checkpoint.stores.opening import split
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)

_KEEP_ALL = Retention(last=10**12)


class _Part:
    """A part of a state that is there, and only to be saved."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> Mapping[str, Any]:
        """Return it."""
        return self._state

    def load_state_dict(self, state: Any, /) -> None:
        """Refuse: nothing is loaded into it."""
        raise NotImplementedError


def import_checkpoint(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], *, step: int = 0, epoch: int = 0
) -> list[str]:
    """Make a checkpoint of what others saved; other checkpoints at the destination stay.

    The source holds a model's state_dict, or dicts of such by part: ``{"model": …, "optimizer": …}``, where
    ``model_state_dict`` and ``state_dict``, ``optimizer_state_dict`` and the like are known too. Its numbers and texts
    beside the parts, an epoch for instance, are left out with a warning. It is not trusted: no code in it is run.

    For one process, before any process group: of many ranks only one may do it.

    Args:
        source: A file of torch.save or safetensors, a SageMaker ``model.tar.gz``, or one of these in S3; a directory
            with a model; or one that torch.distributed.checkpoint (DCP) saved.
        destination: The place for checkpoints: a directory, or ``s3://bucket/prefix``.
        step: The optimizer steps taken.
        epoch: The epoch under way.

    Returns:
        The names of the parts that the checkpoint has.

    Raises:
        CheckpointError: There is no such source, it is damaged, or not safe to read; or the checkpoint cannot be
            written, or is there already.
        ValueError: The step, the epoch or the destination is not possible.
        OSError: The source cannot be read.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise CheckpointError("import a checkpoint in one process, before the ranks of a training are joined")
    found = find_source(source)
    if found.kind == "checkpoint":
        raise _nothing_foreign(found)
    place, inside = split(destination)
    if inside is not None:
        raise CheckpointError(
            f"{destination} is the name of one checkpoint: give the place that it lies in, {place}, and its step apart"
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
    """Say why a place with checkpoints, or with nothing, is not imported."""
    if source.step is not None or next(open_store(source.location).newest_first(), None) is not None:
        return CheckpointError(f"{source} is a checkpoint already: copy its directory")
    return CheckpointError(
        f"{source} has nothing to import: a directory has one of {', '.join(WEIGHTS_NAMES)}, or what DCP saved"
    )
