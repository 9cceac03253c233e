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
    """The run that a tracker is told of."""

    id: str
    """The same after each resume, since it is a part of the checkpoints; 12 hexadecimal digits."""
    step: int
    """The optimizer step from which it goes on: 0, or that of the checkpoint. What is known of later ones is void."""
    job: Job
    """Its name, hyperparameters and directories."""
    part: str | None = None
    """The ``name=`` of the trainer, where a job has several, or its name in the ``state=`` of another one."""

    def within(self, directory: Path) -> Path:
        """What is this run's own in a directory of the job."""
        return directory if self.part is None else directory / self.part


@runtime_checkable
class Tracker(Protocol):
    """What ``Trainer(trackers=[...])`` takes. A subclass need only have the calls that it wants.

    One that raises is told of in the log, with the reason, and called no more: training goes on.

    Examples:
        >>> class Loudest(Tracker):
        ...     def log(self, step, metrics):
        ...         if metrics.get("loss", 0) > 10:
        ...             print(f"the loss of step {step} is {metrics['loss']:g}")
        >>> Loudest().log(7, {"loss": 12.0})
        the loss of step 7 is 12
    """

    def start(self, run: TrackedRun) -> None:
        """The run begins or goes on; called once, before the others."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes the numbers of a metric line, ``epoch`` among them; some may be NaN. A step may come several times."""

    def checkpoint(self, step: int, place: str) -> None:
        """A checkpoint is durable; called some time later, and not for each, if they follow each other fast."""

    def finish(self, status: Status, model: str | None) -> None:
        """The run ends; ``model`` is where `Trainer.save_model` wrote it to, if it did."""
