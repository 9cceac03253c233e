"""Log metrics to MLflow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from smddp.metrics.tracking.tracker import Status, TrackedRun, Tracker, require

_TAG = "smddp.run"
_STATES: dict[Status, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


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
        given = {name: str(value)[:6000] for name, value in run.job.hyperparameters.items()}
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
