"""The values around one save attempt on one rank: the request to the background thread, and the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from smddp.checkpoint.save.snapshot import Snapshot, Snapshotter
from smddp.errors import CheckpointError


@dataclass(kw_only=True, slots=True, frozen=True)
class SaveRequest:
    """The state to save, and its metadata. Training does not change it."""

    run: str
    """The run's id."""
    number: int
    """The number of this save in the run, from 1; the same on all ranks."""
    step: int
    epoch: int
    position: int | None
    """Samples of the epoch consumed so far; None if unknown."""
    metrics: Mapping[str, float]
    snapshot: Snapshot | None
    """This rank's copy of the state; None if it failed."""
    failure: CheckpointError | None
    """The reason why this rank could not copy its state, or None."""

    @classmethod
    def create(
        cls,
        snapshotter: Snapshotter,
        *,
        run: str,
        number: int,
        step: int,
        epoch: int,
        position: int | None,
        metrics: Mapping[str, float],
    ) -> SaveRequest:
        """Copy the state. Put an error into `failure` instead of raising it: the other ranks need the report."""
        request = partial(cls, run=run, number=number, step=step, epoch=epoch, position=position, metrics=metrics)
        try:
            return request(snapshot=snapshotter.take(), failure=None)
        except CheckpointError as error:
            return request(snapshot=None, failure=error)

    @property
    def directory(self) -> str:
        """The name of the attempt's directory, beside the manifest."""
        return f"{self.run}-{self.number:04}"


@dataclass(kw_only=True, slots=True, frozen=True)
class SaveReport:
    """The durations and the size of a save."""

    step: int
    stall_seconds: float
    """How long the copy of the state stalled training, on this rank's GPU or CPU."""
    waited_seconds: float
    """How long training waited for the previous save before that."""
    durable_seconds: float
    """Time from the start of the copy until the checkpoint was durable."""
    size: int
    """Bytes of the checkpoint, over all ranks."""
