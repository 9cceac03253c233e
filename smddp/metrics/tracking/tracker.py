"""The protocol of a tracker: four calls, on rank 0, at each metric line and each ``trainer.log``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from smddp.job import Job

Status = Literal["finished", "stopped", "failed"]
"""How a run ended; a stopped run can be resumed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """The run that a tracker records."""

    id: str
    """12 hexadecimal digits, saved in the checkpoints: the same after each resume."""
    step: int
    """The optimizer step that the run continues from: 0, or the checkpoint's step. Records of later steps are void."""
    job: Job
    """The job, with its name, hyperparameters and directories."""
    part: str | None = None
    """The ``name=`` of the trainer in a job with several, or its name in another trainer's ``state=``."""

    def within(self, directory: Path) -> Path:
        """Return this run's own directory inside a directory of the job."""
        return directory if self.part is None else directory / self.part


@runtime_checkable
class Tracker(Protocol):
    """An object for ``Trainer(trackers=[...])``. A subclass implements only the calls that it needs.

    If a tracker raises, the reason is logged, and it is not called again; training continues.

    Examples:
        >>> class Loudest(Tracker):
        ...     def log(self, step, metrics):
        ...         if metrics.get("loss", 0) > 10:
        ...             print(f"the loss of step {step} is {metrics['loss']:g}")
        >>> Loudest().log(7, {"loss": 12.0})
        the loss of step 7 is 12
    """

    def start(self, run: TrackedRun) -> None:
        """Begin the run, or continue it; called once, before the other methods."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the numbers of a metric line, ``epoch`` included.

        Some may be NaN, and a step may come several times.
        """

    def checkpoint(self, step: int, place: str) -> None:
        """Record a durable checkpoint.

        The call may come late, and not for each checkpoint if they follow each other fast.
        """

    def finish(self, status: Status, model: str | None) -> None:
        """End the run; ``model`` is where `Trainer.save_model` wrote the model, or None."""


def require(package: str, tracker: str) -> None:
    """Raise ModuleNotFoundError if a tracker's package is not installed."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(
            f"{tracker} needs {package}, which is not installed: pip install 'smddp[trackers]' (in a job, a line of "
            "its requirements.txt), or leave that tracker out",
            name=package,
        )
