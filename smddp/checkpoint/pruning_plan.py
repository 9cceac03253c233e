"""What would be removed of a place's checkpoints by a rule, for somebody who wants to see it before it is done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from smddp.checkpoint.restore.listing import CheckpointInfo, inspect
from smddp.checkpoint.retention import Retention, which_stay
from smddp.checkpoint.stores import Store
from smddp.errors import CheckpointError
from smddp.storage.parallel import in_parallel

_THREADS = 16
"""Checkpoints that are looked at at a time: in S3 that is a few requests each."""


@dataclass(kw_only=True, slots=True, frozen=True)
class PruningPlan:
    """The checkpoints of a place, divided."""

    newest: CheckpointInfo
    """The newest valid one, verified. It stays, and so does what is later than it: it may be a save under way."""
    stay: tuple[CheckpointInfo, ...]
    """Oldest first, with the newest."""
    go: tuple[CheckpointInfo, ...]
    """Oldest first."""

    @property
    def size(self) -> int:
        """Bytes of what goes, as far as that is known: of an interrupted save it is not."""
        return sum(info.manifest.size for info in self.go if info.manifest is not None)


def plan_pruning(store: Store, keep: Retention) -> PruningPlan:
    """Say what a rule leaves, and what not. Nothing is removed.

    Interrupted saves and damaged checkpoints before the newest valid one go, and do not count as kept; what a newer
    smddp wrote stays. Only the newest is verified byte by byte.

    Args:
        store: The place.
        keep: The rule.

    Raises:
        CheckpointError: There is no valid checkpoint, or none has the metric that decides about the best.
        StoreError, OSError: The place cannot be read.
    """
    steps = store.steps()
    newest = next(_valid_ones(store), None)
    if newest is None:
        raise CheckpointError(f"there is no valid checkpoint in {store}: nothing is removed from it")
    earlier = [step for step in steps if step < newest.step]
    infos = in_parallel([partial(inspect, store, step, deep=False) for step in earlier], threads=_THREADS)
    infos.append(newest)
    values = {
        info.step: None if keep.metric is None else info.manifest.metrics.get(keep.metric)
        for info in infos
        if info.valid and info.manifest is not None
    }
    if keep.metric is not None and all(value is None for value in values.values()):
        known = sorted({name for info in infos if info.manifest is not None for name in info.manifest.metrics})
        has = f"only of {', '.join(known)}" if known else "nor of another"
        raise CheckpointError(f"no checkpoint in {store} has a value of {keep.metric!r}, {has}")
    staying = which_stay(values, keep) | {info.step for info in infos if info.status == "newer"}
    return PruningPlan(
        newest=newest,
        stay=tuple(info for info in infos if info.step in staying),
        go=tuple(info for info in infos if info.step not in staying),
    )


def _valid_ones(store: Store) -> Iterator[CheckpointInfo]:
    """Return the valid checkpoints, newest first, each verified when it is asked for."""
    for step in store.newest_first():
        info = inspect(store, step)
        if info.valid:
            yield info
