"""One try to save, as one rank has it in memory: what its background thread is given, and what it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from smddp.checkpoint.save.snapshot import Snapshot, Snapshotter
from smddp.errors import CheckpointError


@dataclass(kw_only=True, slots=True, frozen=True)
class SaveRequest:
    """What is to be saved; nothing in it changes any more when training goes on."""

    run: str
    """The run's id."""
    number: int
    """How many the run has made, with this one; the same on all ranks."""
    step: int
    epoch: int
    position: int | None
    """Samples of the epoch that are consumed, if that is known."""
    metrics: Mapping[str, float]
    snapshot: Snapshot | None
    """The state, as this rank took it."""
    failure: CheckpointError | None
    """Why this rank could not take its state, if it could not."""

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
        """Copy the state as it is now. If that fails, the request says so: the other ranks must hear of it.

        Args:
            snapshotter: What takes this rank's state.
            run: See the fields.
            number: See the fields.
            step: See the fields.
            epoch: See the fields.
            position: See the fields.
            metrics: See the fields.
        """
        request = partial(cls, run=run, number=number, step=step, epoch=epoch, position=position, metrics=metrics)
        try:
            return request(snapshot=snapshotter.take(), failure=None)
        except CheckpointError as error:
            return request(snapshot=None, failure=error)

    @property
    def directory(self) -> str:
        """Where its files are, beside the manifest."""
        return f"{self.run}-{self.number:04}"


@dataclass(kw_only=True, slots=True, frozen=True)
class SaveReport:
    """What a save took."""

    step: int
    stall_seconds: float
    """How long training stood still while its state was copied, on this rank's GPU or on the CPU."""
    waited_seconds: float
    """How long it stood still before, because the save before had not ended."""
    durable_seconds: float
    """How long it was, from the beginning of the copy, until the checkpoint could not be lost any more."""
    size: int
    """Bytes of the checkpoint, over all ranks."""
