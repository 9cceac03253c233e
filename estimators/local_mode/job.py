"""A finished job of this machine: there is nothing to wait for, and no service that kept its log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from estimators.errors import EstimatorError
from estimators.log_reader import LogLine, LogReader
from estimators.training_job import TrainingJob

if TYPE_CHECKING:
    from mypy_boto3_sagemaker.type_defs import DescribeTrainingJobResponseTypeDef

    from estimators.job_handle.events import OnEvent
    from estimators.job_handle.files import JobFiles


class LocalModeJob(TrainingJob):
    """A finished job of ``instance_type="local"``."""

    def __init__(self, name: str, description: Mapping[str, Any]) -> None:
        """Point at a job; ``description`` is its last DescribeTrainingJob."""
        self.name = name
        self._description: Any = {"SecondaryStatus": description["TrainingJobStatus"], **description}

    def describe(self) -> DescribeTrainingJobResponseTypeDef:
        """Return the description of the finished job, as DescribeTrainingJob gives it."""
        description: DescribeTrainingJobResponseTypeDef = self._description
        return description

    def _log(self, cancelled: Callable[[], bool] = lambda: False) -> LogReader:  # noqa: ARG002
        """Raise EstimatorError: nothing keeps the log of a local job."""
        raise EstimatorError(
            f"{self.name} has no log: nothing keeps that of a local job, and fit() has shown it. "
            "estimators.local.LocalSageMaker keeps it."
        )

    def lines(self) -> Iterator[LogLine]:
        """Raise EstimatorError, at the call and not only at the first line."""
        return iter(self._log().unread())

    def wait(self, logs: bool = True, *, on_event: OnEvent | None = None) -> None:
        """Return at once: the job has ended."""

    def download(
        self,
        directory: str | os.PathLike[str],  # noqa: ARG002
        *,
        only: Literal["model", "output"] | None = None,  # noqa: ARG002
    ) -> JobFiles:
        """Raise EstimatorError: the files of a local job are already on this machine, or in its output path."""
        raise EstimatorError(
            f"{self.name} is a local job, of which nothing is downloaded: what it has left lies in its output_path."
        )

    def resume(self, **_changes: Any) -> TrainingJob:
        """Raise EstimatorError: a local job is started again by its Estimator."""
        raise EstimatorError(f"{self.name} is a local job, which is not started again by its name{self.how_to_resume}.")

    def _s3(self) -> None:
        """Return no client, so that boto3's own configuration decides where S3 is."""

    def _advice(self, status: str) -> str:
        return self.how_to_resume if status == "Stopped" else ""

    @property
    def how_to_resume(self) -> str:
        """The effect of the next ``fit()``, as the end of a sentence."""
        if place := self.checkpoint_s3_uri:
            return f"; the next fit() goes on from what checkpoints there are in {place}"
        kept = "checkpoint_s3_uri='file:///directory' keeps them"
        return f"; it keeps no checkpoints, so the next fit() starts anew ({kept})"
