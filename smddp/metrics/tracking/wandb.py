"""Log metrics to Weights & Biases."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from smddp.metrics.tracking.line_file import as_json
from smddp.metrics.tracking.tracker import Status, TrackedRun, Tracker, require

_WRITE_SECONDS = 5.0
_LOOK_SECONDS = 0.1
_HEADER_BYTES = 7


class WandB(Tracker):
    """Log a run of Weights & Biases; a resume continues the run of the same id.

    Its files are in ``wandb`` in the job's output directory. Offline, each resume writes its own directory there, and
    ``wandb sync`` merges them. The run's summary contains the locations of checkpoint and model.

    Args:
        project: The project's name; None is wandb's own setting (``WANDB_PROJECT``).
        mode: ``"offline"`` needs no network; None is wandb's own setting (``WANDB_MODE``).

    Raises:
        ModuleNotFoundError: The package ``wandb`` is not installed.
    """

    def __init__(self, project: str | None = None, mode: Literal["online", "offline"] | None = None) -> None:
        require("wandb", "WandB")
        self._project = project
        self._mode = mode

    def start(self, run: TrackedRun) -> None:
        """Create the run, or continue the one with this id."""
        import wandb

        directory = run.within(run.job.output_dir)
        directory.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=self._project,
            mode=self._mode,
            id=run.id,
            name=run.job.name,
            resume="allow",
            dir=directory,
            config=as_json(dict(run.job.hyperparameters)),
            # The platform keeps the log, and the live line writes to the terminal itself.
            settings=wandb.Settings(console="off", silent=True),
        )
        # wandb's own step must grow with each call. Ours is an axis instead, and may be logged several times.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the numbers."""
        self._run.log({"step": step, **metrics})

    def checkpoint(self, step: int, place: str) -> None:
        """Record the checkpoint in the summary."""
        self._run.summary.update({"checkpoint": place, "checkpoint_step": step})

    def finish(self, status: Status, model: str | None) -> None:
        """End the run, once its data is on disk or sent."""
        self._run.summary.update({"status": status, "model": model})
        file = Path(self._run.settings.sync_file) if self._run.offline else None
        self._run.finish(exit_code=1 if status == "failed" else 0)
        if file is not None:
            _await_written(file)


def _await_written(file: Path) -> None:
    """Wait until a file no longer grows, for five seconds at most.

    wandb's own process still writes after ``finish`` has returned, and the end of a container would kill it.
    """
    deadline = time.monotonic() + _WRITE_SECONDS
    size = -1
    while time.monotonic() < deadline and (size != (now := file.stat().st_size) or now <= _HEADER_BYTES):
        size = now
        time.sleep(_LOOK_SECONDS)
