"""Write metrics as a table in long form, for spreadsheets and pandas."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path

from smddp.metrics.tracking.line_file import LineFile
from smddp.metrics.tracking.tracker import Status, TrackedRun, Tracker

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
        self._file = LineFile(path, step_of=_step_of, step=run.step, header=_HEADER)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a row for each number."""
        for name, value in metrics.items():
            row = io.StringIO()
            csv.writer(row, lineterminator="").writerow([step, name, value])
            self._file.write(row.getvalue())

    def finish(self, status: Status, model: str | None) -> None:  # noqa: ARG002
        """Close the file."""
        self._file.close()


def _step_of(line: str) -> int | None:
    step, _, rest = line.partition(",")
    return int(step) if step.isdecimal() and "," in rest else None
