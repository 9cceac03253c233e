"""A preview of retention: the checkpoints that a rule would keep, and those it would remove."""

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
"""Checkpoints inspected at the same time. In S3 each takes a few requests."""


@dataclass(kw_only=True, slots=True, frozen=True)
class PruningPlan:
    """The checkpoints to keep and those to remove."""

    newest: CheckpointInfo
    """The newest valid checkpoint, verified. It stays. Later steps stay, too: one may be a save in progress."""
    stay: tuple[CheckpointInfo, ...]
    """The checkpoints to keep, oldest first, including the newest."""
    go: tuple[CheckpointInfo, ...]
    """The checkpoints to remove, oldest first."""

    @property
    def size(self) -> int:
        """Bytes to free. Checkpoints without a readable manifest, such as interrupted saves, count as 0."""
        return sum(info.manifest.size for info in self.go if info.manifest is not None)


def plan_pruning(store: Store, keep: Retention) -> PruningPlan:
    """Divide the checkpoints by a rule; remove none. Raise CheckpointError if none is valid, or none has the metric."""
    # Interrupted saves and damaged checkpoints before the newest valid one go, and do not count as kept. Checkpoints of
    # a newer smddp stay. Only the newest is verified byte by byte.
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
    """Yield the valid checkpoints, newest first. Verify each when the iteration reaches it."""
    for step in store.newest_first():
        info = inspect(store, step)
        if info.valid:
            yield info
