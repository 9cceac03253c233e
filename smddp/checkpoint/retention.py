"""Which checkpoints stay, and the removal of the others, which may be killed at any moment."""

from __future__ import annotations

import logging

from smddp.checkpoint.manifest import Manifest, NewerFormatError
from smddp.checkpoint.store import DirectoryStore
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)


def prune(store: DirectoryStore, *, newest: int, keep_last: int) -> None:
    """Remove the checkpoints before the newest that are not among the last few.

    Called once the newest is durable: whatever happens here, it is valid. Steps after it are left alone, they are
    not this run's past. Unfinished and unreadable ones before it go first, they do not count. What cannot be
    removed is tried again after the next save.

    Args:
        store: where they are.
        newest: the step of the checkpoint just saved.
        keep_last: how many stay, with the newest.
    """
    kept = 1
    for step in reversed([step for step in store.steps() if step < newest]):
        try:
            if _is_finished(store, step) and kept < keep_last:
                kept += 1
                continue
            store.remove(step)
            logger.info("removed %s: the last %d checkpoints are kept", store.path(step), keep_last)
        except NewerFormatError as error:
            logger.info("left %s in place: %s", store.path(step), error)
        except OSError as error:
            logger.warning("could not remove %s: %s; trying again after the next save", store.path(step), error)


def _is_finished(store: DirectoryStore, step: int) -> bool:
    """Whether there is a readable manifest. The files are not verified: that takes as long as reading them."""
    try:
        data = store.read_manifest(step)
        return data is not None and Manifest.from_json(data).step == step
    except NewerFormatError:
        raise
    except CheckpointError:
        return False
