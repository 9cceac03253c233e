"""Write metrics as JSON lines to ``metrics.jsonl``, in every run."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smddp.metrics.tracking.line_file import LineFile
from smddp.metrics.tracking.tracker import Status, TrackedRun, Tracker


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
