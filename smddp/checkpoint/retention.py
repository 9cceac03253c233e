"""Which checkpoints stay, and the removal of the others. A kill in the middle of it does no harm."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from smddp.checkpoint.format.manifest import Manifest, NewerFormatError
from smddp.checkpoint.restore.listing import CheckpointInfo, check_sizes, inspect
from smddp.checkpoint.stores import Store, StoreError
from smddp.errors import CheckpointError
from smddp.storage.parallel import in_parallel

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True, frozen=True)
class Retention:
    """Which checkpoints stay. A checkpoint stays if any of these rules keeps it.

    Raises:
        ValueError: Nothing would stay, or the rules contradict each other.
    """

    last: int = 3
    """How many of the newest checkpoints stay; at least 1."""
    best: int = 0
    """How many of the best checkpoints by `metric` stay, not counting those that `every` keeps. A checkpoint whose
    metric is NaN or absent is never among the best. Of equal values the older checkpoint wins."""
    metric: str | None = None
    """The metric that ranks the best checkpoints: a name in the manifests."""
    mode: Literal["max", "min"] = "max"
    """``"max"`` if a larger value of the metric is better (accuracy), ``"min"`` if a smaller one is (loss)."""
    every: int | None = None
    """Keep each checkpoint whose step is a multiple of this, for ever. None keeps none this way."""

    def __post_init__(self) -> None:
        for name in ("last", "best", "every"):
            value = getattr(self, name)
            if type(value) is not int and not (name == "every" and value is None):
                raise ValueError(f"{name} is {value!r}: give a whole number{' or None' if name == 'every' else ''}")
        if self.last < 1:
            raise ValueError(f"last is {self.last}: at least one checkpoint must stay")
        if self.best < 0:
            raise ValueError(f"best is {self.best}: it is how many of the best stay, 0 or more")
        if (self.best > 0) != (self.metric is not None):
            raise ValueError(f"best is {self.best} and metric is {self.metric!r}: give both, or neither")
        if self.mode not in ("max", "min"):
            raise ValueError(f"mode is {self.mode!r}: whether the best is the 'max' or the 'min' of the metric")
        if self.every is not None and self.every < 1:
            raise ValueError(f"every is {self.every}: it is a count of steps, 1 or more, or None")

    def is_lasting(self, step: int) -> bool:
        """Return whether `every` keeps the checkpoint of this step."""
        return self.every is not None and step % self.every == 0


def which_stay(values: Mapping[int, float | None], keep: Retention) -> set[int]:
    """Return the steps that stay, always with the largest. `values` maps each step to `keep.metric`, None if absent."""
    last = sorted(values)[-keep.last :]
    lasting = [step for step in values if keep.is_lasting(step)]
    candidates = [
        (-value if keep.mode == "max" else value, step)
        for step, value in values.items()
        if value is not None and not math.isnan(value) and not keep.is_lasting(step)
    ]
    best = [step for _, step in sorted(candidates)[: keep.best]]
    return {*last, *lasting, *best}


@dataclass(kw_only=True, slots=True, frozen=True)
class _Known:
    """The facts that pruning needs of a finished checkpoint, read once from its manifest."""

    directory: str
    value: float | None


class Pruner:
    """Removes superseded checkpoints after each save. Reads each manifest, and the sizes of its files, once.

    Notes on the order:
      1. Nothing is removed before the newest checkpoint is durable, and its manifest and files are found again.
      2. Steps after the newest are never removed: they are not this run's past.
      3. `Store.remove` deletes the manifest first. A kill in the middle leaves an unfinished attempt, never a damaged
         checkpoint, and the next save removes it.
    """

    def __init__(self, store: Store, keep: Retention) -> None:
        """Read nothing yet."""
        self._store = store
        self._keep = keep
        self._known: dict[int, _Known] = {}
        self._swept: set[int] = set()

    def prune(self, newest: int) -> list[int]:
        """Remove the checkpoints before `newest` that no rule keeps, and return their steps. A later call retries."""
        # Unfinished and damaged checkpoints go, and do not count as kept. Checkpoints of a newer smddp stay. A step
        # that `Retention.every` keeps is examined only until `last` checkpoints are found, to save requests.
        self._known.pop(newest, None)  # the same step may have been saved again
        self._swept.discard(newest)
        try:
            finished = {newest: self._examine(newest).value}
        except (CheckpointError, OSError) as error:
            logger.warning("removed no checkpoint, because the newest, %s: %s", self._store.path(newest), error)
            return []
        removed = []
        present = self._store.steps()
        for step in reversed([step for step in present if step < newest]):
            if self._keep.is_lasting(step) and len(finished) >= self._keep.last:
                continue
            try:
                finished[step] = self._examine(step).value
            except NewerFormatError as error:
                logger.info("left %s in place: %s", self._store.path(step), error)
            except (StoreError, OSError) as error:
                logger.warning("left %s in place, for it cannot be read: %s", self._store.path(step), error)
            except CheckpointError as error:
                removed += self._remove(step, str(error), logging.INFO)
        stay = which_stay(finished, self._keep)
        for step in sorted(finished):
            if step not in stay:
                removed += self._remove(step, "newer or better ones are kept", logging.DEBUG)
            elif step != newest and step not in self._swept:
                self._sweep(step)
        left = set(present).difference(removed)
        self._known = {step: known for step, known in self._known.items() if step in left}
        self._swept &= left
        return sorted(removed)

    def _examine(self, step: int) -> _Known:
        """Return the facts of a finished checkpoint. Raise CheckpointError if its manifest or a file is bad or missing.

        Checks the sizes of the files, not their bytes.
        """
        if step not in self._known:
            content = self._store.read_manifest(step)
            if content is None:
                raise CheckpointError("its save was interrupted")
            manifest = Manifest.from_json(content)
            if manifest.step != step:
                raise CheckpointError(f"its manifest is that of step {manifest.step}")
            check_sizes(self._store, manifest)
            value = None if self._keep.metric is None else manifest.metrics.get(self._keep.metric)
            self._known[step] = _Known(directory=manifest.directory, value=value)
        return self._known[step]

    def _remove(self, step: int, reason: str, level: int) -> list[int]:
        try:
            self._store.remove(step)
        except (CheckpointError, OSError) as error:
            logger.warning("could not remove %s: %s; trying again after the next save", self._store.path(step), error)
            return []
        logger.log(level, "removed %s: %s", self._store.path(step), reason)
        return [step]

    def _sweep(self, step: int) -> None:
        """Remove all attempts of a finished step, except the attempt that the manifest names."""
        try:
            for attempt in self._store.attempts(step):
                if attempt != self._known[step].directory:
                    self._store.discard(step, attempt)
            self._swept.add(step)
        except (CheckpointError, OSError) as error:
            path = self._store.path(step)
            logger.warning("could not remove old files in %s: %s; trying again after the next save", path, error)


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
