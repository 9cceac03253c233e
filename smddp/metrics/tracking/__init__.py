"""Trackers: record a run's configuration, metrics, checkpoints and model, beside the log."""

from smddp.metrics.tracking.line_file import CsvFile, JsonLines
from smddp.metrics.tracking.mlflow import MLflow
from smddp.metrics.tracking.tensorboard import TensorBoard
from smddp.metrics.tracking.tracker import Status, TrackedRun, Tracker
from smddp.metrics.tracking.tracker_group import TrackerGroup
from smddp.metrics.tracking.wandb import WandB

__all__ = ["CsvFile", "JsonLines", "MLflow", "Status", "TensorBoard", "TrackedRun", "Tracker", "TrackerGroup", "WandB"]
