"""Trackers of other tools: MLflow, TensorBoard, and Weights & Biases.

Each tool is imported when a run starts, so it is needed only where its tracker is used.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from smddp.metrics.tracking import Status, TrackedRun, Tracker, as_json, require

_TAG = "smddp.run"
_STATES: dict[Status, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

_WRITE_SECONDS = 5.0
_LOOK_SECONDS = 0.1
_HEADER_BYTES = 7


class MLflow(Tracker):
    """Log a run of an MLflow experiment; a resume finds the run by its tag ``smddp.run``, and continues it.

    Hyperparameters are params. The tags ``smddp.checkpoint`` and ``smddp.model`` contain the locations of checkpoint
    and model. MLflow's own settings, such as ``MLFLOW_TRACKING_URI``, choose the server.

    Args:
        experiment: The experiment's name; None is the job's name.
        tracking_uri: The server, or a directory's URI, instead of MLflow's own setting.

    Raises:
        ModuleNotFoundError: The package ``mlflow`` (``mlflow-skinny`` suffices) is not installed.
    """

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        require("mlflow", "MLflow")
        self._experiment = experiment
        self._tracking_uri = tracking_uri

    def start(self, run: TrackedRun) -> None:
        """Create the run, or continue the one with this id."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client: Any = MlflowClient(self._tracking_uri)
        name = self._experiment or run.job.name
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        found = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{run.id}'")
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._run = self._client.create_run(experiment, run_name=run.job.name, tags={_TAG: run.id}).info.run_id
        given = {name: str(value)[:6000] for name, value in run.hyperparameters.items()}
        kept = found[0].data.params if found else {}
        # A param can't be changed: a resume's new value becomes a tag.
        self._client.log_batch(self._run, params=[Param(*each) for each in given.items() if each[0] not in kept])
        for name, value in given.items():
            if kept.get(name, value) != value:
                self._client.set_tag(self._run, f"smddp.changed.{name}", value)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the numbers, in one request."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[Metric(name, value, now, step) for name, value in metrics.items()])

    def checkpoint(self, step: int, place: str) -> None:
        """Tag the run with the checkpoint."""
        self._client.set_tag(self._run, "smddp.checkpoint", f"step {step}: {place}")

    def finish(self, status: Status, model: str | None) -> None:
        """End the run."""
        if model is not None:
            self._client.set_tag(self._run, "smddp.model", model)
        self._client.set_terminated(self._run, _STATES[status])


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
        text = json.dumps(as_json({"run": run.id, "job": run.job.name, **run.hyperparameters}), indent=2)
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
            config=as_json(dict(run.hyperparameters)),
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
