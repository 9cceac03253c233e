"""Which checkpoints stay, and the removal of the others, which may be killed at any moment."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from smddp.checkpoint.format.manifest import Manifest, NewerFormatError
from smddp.checkpoint.restore.listing import check_sizes
from smddp.checkpoint.stores import Store, StoreError
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True, frozen=True)
class Retention:
    """Which checkpoints stay: those that any of these rules keeps.

    Raises:
        ValueError: Nothing would stay, or the rules contradict each other.
    """

    last: int = 3
    """How many of the newest; at least 1."""
    best: int = 0
    """How many of the best by `metric`. The ones that `every` keeps are not counted. NaN is never among the best, nor
    is a checkpoint that has no such metric. Of two that are as good the older is the better."""
    metric: str | None = None
    """What decides about the best: the name of a metric in the manifests."""
    mode: Literal["max", "min"] = "max"
    """Whether a larger value of the metric is better, as of an accuracy, or a smaller one, as of a loss."""
    every: int | None = None
    """For ever, those whose step is a multiple of this; None: no such."""

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
        """Return whether `every` keeps it."""
        return self.every is not None and step % self.every == 0


def which_stay(values: Mapping[int, float | None], keep: Retention) -> set[int]:
    """Choose among finished checkpoints.

    Args:
        values: The value of `keep.metric` by step; None where it was not measured.
        keep: The rules.

    Returns:
        The steps that stay; the largest is always among them.
    """
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
    """What the manifest of a finished checkpoint says, whose files are all there."""

    directory: str
    value: float | None


class Pruner:
    """Removes, save after save, what need not stay.

    It reads each manifest, and asks for the sizes of its files, once, and only of those checkpoints that it must.
    """

    def __init__(self, store: Store, keep: Retention) -> None:
        """Begin; nothing is read yet."""
        self._store = store
        self._keep = keep
        self._known: dict[int, _Known] = {}
        self._swept: set[int] = set()

    def prune(self, newest: int) -> list[int]:
        """Remove the checkpoints before the newest that need not stay.

        Called once the newest is durable: whatever happens here, it is there. Steps after it are left alone: they are
        not this run's past. Of those before it, unfinished and damaged ones are removed and do not count; those that
        a newer smddp wrote stay. What cannot be removed now is tried again the next time. A checkpoint that
        `Retention.every` keeps is looked at only while it is among the last ones.

        Args:
            newest: The step of the newest checkpoint.

        Returns:
            The steps that were removed.
        """
        self._known.pop(newest, None)  # it may have been saved once more
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
                removed += self._remove(step, str(error))
        stay = which_stay(finished, self._keep)
        for step in sorted(finished):
            if step not in stay:
                removed += self._remove(step, "newer or better ones are kept")
            elif step != newest and step not in self._swept:
                self._sweep(step)
        left = set(present).difference(removed)
        self._known = {step: known for step, known in self._known.items() if step in left}
        self._swept &= left
        return sorted(removed)

    def _examine(self, step: int) -> _Known:
        """Return what is known of a finished checkpoint.

        Its files are there with their sizes; their bytes are not verified: that takes as long as reading them.

        Raises:
            CheckpointError: There is no manifest that can be trusted, or not all of its files.
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

    def _remove(self, step: int, reason: str) -> list[int]:
        try:
            self._store.remove(step)
        except (CheckpointError, OSError) as error:
            logger.warning("could not remove %s: %s; trying again after the next save", self._store.path(step), error)
            return []
        logger.info("removed %s: %s", self._store.path(step), reason)
        return [step]

    def _sweep(self, step: int) -> None:
        """Remove the attempts at a finished checkpoint that were interrupted, or replaced and not removed."""
        try:
            for attempt in self._store.attempts(step):
                if attempt != self._known[step].directory:
                    self._store.discard(step, attempt)
            self._swept.add(step)
        except (CheckpointError, OSError) as error:
            path = self._store.path(step)
            logger.warning("could not remove old files in %s: %s; trying again after the next save", path, error)
