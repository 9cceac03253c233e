"""What a tracker is: four calls, on rank 0, whenever a metric line is due and at ``trainer.log``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from smddp.job import Job

Status = Literal["finished", "stopped", "failed"]
"""How a run ended; a stopped one can go on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """The run that a tracker records."""

    id: str
    """The same after each resume, since it is a part of the checkpoints; 12 hexadecimal digits."""
    step: int
    """The optimizer step from which it goes on: 0, or the checkpoint's step. Records of later steps are void."""
    job: Job
    """Its name, hyperparameters and directories."""
    part: str | None = None
    """The ``name=`` of the trainer, where a job has several, or its name in the ``state=`` of another one."""

    def within(self, directory: Path) -> Path:
        """Return what is this run's own in a directory of the job."""
        return directory if self.part is None else directory / self.part


@runtime_checkable
class Tracker(Protocol):
    """What ``Trainer(trackers=[...])`` takes. A subclass need only have the calls that it wants.

    A tracker that raises is logged with the reason and not called again; training goes on.

    Examples:
        >>> class Loudest(Tracker):
        ...     def log(self, step, metrics):
        ...         if metrics.get("loss", 0) > 10:
        ...             print(f"the loss of step {step} is {metrics['loss']:g}")
        >>> Loudest().log(7, {"loss": 12.0})
        the loss of step 7 is 12
    """

    def start(self, run: TrackedRun) -> None:
        """Begin the run, or go on with it; called once, before the other methods."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the numbers of a metric line, ``epoch`` among them; some may be NaN. A step may come several times."""

    def checkpoint(self, step: int, place: str) -> None:
        """Note a durable checkpoint; called some time later, and not for each where they follow fast."""

    def finish(self, status: Status, model: str | None) -> None:
        """End the run; ``model`` is where `Trainer.save_model` wrote it, if it did."""
