"""The trackers that write files of lines, JSON and CSV, which a resumed run continues from its checkpoint."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from smddp.metrics.tracking.tracker import Status, TrackedRun, Tracker


class LineFile:
    """A file to which whole lines are appended; its directory is created.

    Lines after ``step`` are removed: a killed run took these steps after its checkpoint, and a resume takes them again.
    ``step_of`` returns the step of a line, or None for one that is incomplete or foreign. ``header`` is the first line.
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


_HEADER = "step,metric,value"


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
        self._file = LineFile(path, step_of=_step_of_row, step=run.step, header=_HEADER)

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
        self._file = LineFile(path, step_of=_step_of, step=run.step)
        hyperparameters = dict(run.job.hyperparameters)
        self._write(run.step, event="start", run=run.id, job=run.job.name, hyperparameters=hyperparameters)

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
