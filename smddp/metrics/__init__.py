"""Metrics of a run: metric lines, running means, the time of each phase of a step, trackers, and a live line."""

from smddp.metrics.profile import Profile
from smddp.metrics.running_mean import RunningMean
from smddp.metrics.step_timer import StepTimer
from smddp.metrics.tracking import CsvFile, JsonLines, Status, TrackedRun, Tracker
from smddp.metrics.tracking_services import MLflow, TensorBoard, WandB

__all__ = [
    "CsvFile",
    "JsonLines",
    "MLflow",
    "Profile",
    "RunningMean",
    "Status",
    "StepTimer",
    "TensorBoard",
    "TrackedRun",
    "Tracker",
    "WandB",
]
