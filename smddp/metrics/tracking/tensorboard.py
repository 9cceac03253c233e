"""Write metrics for TensorBoard."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smddp.metrics.tracking.line_file import as_json
from smddp.metrics.tracking.tracker import Status, TrackedRun, Tracker, require


class TensorBoard(Tracker):
    """Write event files: a chart for each metric, and texts for hyperparameters, checkpoints and model.

    The default directory is ``tensorboard`` in the job's output directory. On SageMaker that is
    /opt/ml/output/tensorboard. SageMaker copies it to S3 while the job runs, if the job has a
    ``tensorboard_output_config`` (its ``container_local_output_path`` is this directory by default).

    A resume hides the points after its checkpoint.

    Args:
        directory: The directory to write to; None is the default.

    Raises:
        ModuleNotFoundError: The package ``tensorboard`` is not installed.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        require("tensorboard", "TensorBoard")
        self._directory = None if directory is None else Path(directory)
        self._last_step = 0

    def start(self, run: TrackedRun) -> None:
        """Open an event file."""
        from torch.utils.tensorboard import SummaryWriter

        directory = self._directory or run.within(run.job.output_dir / "tensorboard")
        self._last_step = run.step
        # TensorBoard hides points from purge_step on: a killed run wrote them after its checkpoint.
        make: Any = SummaryWriter  # untyped
        self._writer = make(directory, purge_step=run.step + 1 if run.step else None)
        text = json.dumps(as_json({"run": run.id, "job": run.job.name, **run.job.hyperparameters}), indent=2)
        self._text("hyperparameters", f"```\n{text}\n```", run.step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to each chart."""
        self._last_step = step
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def checkpoint(self, step: int, place: str) -> None:
        """Add the checkpoint's location as a text."""
        self._text("checkpoint", place, step)

    def finish(self, status: Status, model: str | None) -> None:
        """Add the status as a text, and close the file."""
        self._text("end", f"{status}; model: {model or 'none'}", self._last_step)
        self._writer.close()

    def _text(self, name: str, text: str, step: int) -> None:
        self._writer.add_text(name, text, step)
