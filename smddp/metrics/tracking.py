"""Trackers: record a run's configuration, metrics, checkpoints and model, beside the log.

A tracker is called on rank 0: at the start, metric lines, checkpoints, and the end. `TrackerGroup`
joins a run's trackers, and drops a tracker that raises. Two trackers write files, JSON lines and CSV, which a resumed
run continues from its checkpoint.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from smddp.job import Job
from smddp.secret_text import masked

logger = logging.getLogger(__name__)

Status = Literal["finished", "stopped", "failed"]
"""How a run ended; a stopped run can be resumed."""

_HEADER = "step,metric,value"  # of a CSV file


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

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The job's hyperparameters, secrets masked: others may read what a tracker records."""
        return dict(masked(self.job.hyperparameters))

    def within(self, directory: Path) -> Path:
        """Return the run's directory in a directory of the job; a job's only run uses that itself."""
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

        The call may come late. If checkpoints follow each other fast, some get no call.
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


class TrackerGroup:
    """Call each tracker, in order; a tracker that raises is not called again.

    Raises TypeError for an object that is not a tracker.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        for tracker in trackers:
            if isinstance(tracker, type) or not isinstance(tracker, Tracker):
                raise TypeError(
                    f"trackers has {tracker!r}, which is no tracker: give objects with start, log, checkpoint and "
                    "finish, such as smddp.metrics.TensorBoard(); a subclass of smddp.metrics.Tracker has all four"
                )
        self._working = list(trackers)

    def start(self, run: TrackedRun) -> None:
        """Tell each tracker that the run begins or continues."""
        self._tell(lambda tracker: tracker.start(run))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the numbers of a metric line to each tracker."""
        self._tell(lambda tracker: tracker.log(step, metrics))

    def checkpoint(self, step: int, place: str) -> None:
        """Tell each tracker that a checkpoint is durable."""
        self._tell(lambda tracker: tracker.checkpoint(step, place))

    def finish(self, status: Status, model: str | None) -> None:
        """Tell each tracker that the run ends."""
        self._tell(lambda tracker: tracker.finish(status, model))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        self._working = [tracker for tracker in self._working if _works(tracker, what)]


def _works(tracker: Tracker, what: Callable[[Tracker], None]) -> bool:
    try:
        what(tracker)
    except Exception as error:
        # A tracker must not end hours of training, and each further call to a dead server costs time.
        logger.warning(
            "the tracker %s failed, and gets nothing more; training continues: %s: %s",
            type(tracker).__name__,
            type(error).__name__,
            error,
            exc_info=logger.isEnabledFor(logging.DEBUG),
        )
        return False
    return True


class _LineFile:
    """A file to which whole lines are appended; its directory is created.

    Lines after ``step`` are removed: a killed run took these steps after its checkpoint, and a resume takes them again.
    ``step_of`` returns the step of a line; None if the line is incomplete or foreign. ``header`` is the first line.
    """

    def __init__(
        self, path: Path, *, step_of: Callable[[str], int | None], step: int, header: str | None = None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Order: write the kept lines to a new file, then rename it over the old one, so that a kill leaves one of them.
        kept = [] if header is None else [header]
        if step and path.exists():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            kept += [line for line in lines if (found := step_of(line)) is not None and found <= step]
        new = path.with_name(f"{path.name}.new")
        new.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        new.replace(path)
        self._file = path.open("a", encoding="utf-8")
        self._process = os.getpid()

    def write(self, line: str) -> None:
        """Append a line and flush it, so that others can read it at once; do nothing in a forked process."""
        if os.getpid() == self._process:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CsvFile(Tracker):
    """Write one row per number: ``step,metric,value``. New metrics need no new columns.

    Read it with pandas: ``read_csv(path).pivot_table(index="step", columns="metric", values="value")``. A resume
    removes the rows after its checkpoint.

    Args:
        path: The file; ``metrics.csv`` in the job's output data directory if None.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)

    def start(self, run: TrackedRun) -> None:
        """Open the file, and remove the rows after the run's step."""
        path = self._path or run.within(run.job.output_data_dir) / "metrics.csv"
        self._file = _LineFile(path, step_of=_step_of_row, step=run.step, header=_HEADER)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a row for each number."""
        for name, value in metrics.items():
            row = io.StringIO()
            csv.writer(row, lineterminator="").writerow([step, name, value])
            self._file.write(row.getvalue())

    def finish(self, status: Status, model: str | None) -> None:  # noqa: ARG002
        """Close the file."""
        self._file.close()


def _step_of_row(line: str) -> int | None:
    step, _, rest = line.partition(",")
    return int(step) if step.isdecimal() and "," in rest else None


class JsonLines(Tracker):
    """Write one JSON object per line: ``{"step": 50, "time": 1790000000.1, "epoch": 0, "loss": 0.5, "lr": 0.1}``.

    Other lines have an ``event``: ``start`` (with the hyperparameters), ``checkpoint`` or ``end``. NaN and infinity,
    which JSON lacks, are ``null``. A resume removes the lines after its checkpoint.

    Args:
        path: The file; ``metrics.jsonl`` in the job's output data directory if None.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)

    def start(self, run: TrackedRun) -> None:
        """Open the file, and remove the lines after the run's step."""
        path = self._path or run.within(run.job.output_data_dir) / "metrics.jsonl"
        self._file = _LineFile(path, step_of=_step_of, step=run.step)
        self._write(run.step, event="start", run=run.id, job=run.job.name, hyperparameters=run.hyperparameters)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the numbers."""
        self._write(step, **metrics)

    def checkpoint(self, step: int, place: str) -> None:
        """Write the checkpoint's location."""
        self._write(step, event="checkpoint", place=place)

    def finish(self, status: Status, model: str | None) -> None:
        """Write how the run ended, and close the file."""
        self._write(self._last_step, event="end", status=status, model=model)
        self._file.close()

    def _write(self, step: int, /, **values: Any) -> None:
        self._last_step = step
        line = {"step": step, "time": round(time.time(), 3)} | values | {"step": step}  # a metric may be named step
        self._file.write(json.dumps(as_json(line), allow_nan=False))


def as_json(value: Any) -> Any:
    """Return the value as JSON can represent it: None for NaN and infinity, text for an unknown type."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _step_of(line: str) -> int | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found["step"] if isinstance(found, dict) and isinstance(found.get("step"), int) else None
