"""A job of this machine that has ended: there is nothing to wait for, and no service that kept its log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from estimators.errors import EstimatorError
from estimators.log_reader import LogLine, LogReader
from estimators.training_job import TrainingJob

if TYPE_CHECKING:
    from mypy_boto3_sagemaker.type_defs import DescribeTrainingJobResponseTypeDef

    from estimators.job_handle.files import JobFiles
    from estimators.job_handle.listener import OnEvent


class LocalModeJob(TrainingJob):
    """A job of ``instance_type="local"``, at its end."""

    def __init__(self, name: str, description: Mapping[str, Any]) -> None:
        """Point at a job.

        Args:
            name: The job's name.
            description: What DescribeTrainingJob says about it at its end.
        """
        self.name = name
        self._description: Any = {"SecondaryStatus": description["TrainingJobStatus"], **description}

    def describe(self) -> DescribeTrainingJobResponseTypeDef:
        """All that there is to say about the job, as by DescribeTrainingJob."""
        description: DescribeTrainingJobResponseTypeDef = self._description
        return description

    def _log(self, cancelled: Callable[[], bool] = lambda: False) -> LogReader:  # noqa: ARG002
        """Nothing keeps the log of a local job.

        Raises:
            EstimatorError: Always.
        """
        raise EstimatorError(
            f"{self.name} has no log: nothing keeps that of a local job, and fit() has shown it. "
            "estimators.local.LocalSageMaker keeps it."
        )

    def lines(self) -> Iterator[LogLine]:
        """Refuse, as `_log` does, before a line is asked for."""
        return iter(self._log().unread())

    def wait(self, logs: bool = True, *, on_event: OnEvent | None = None) -> None:
        """Return at once: the job has ended."""

    def download(
        self,
        directory: str | os.PathLike[str],  # noqa: ARG002
        *,
        only: Literal["model", "output"] | None = None,  # noqa: ARG002
    ) -> JobFiles:
        """Refuse: what a local job leaves is on this machine, or where its output path says.

        Raises:
            EstimatorError: Always.
        """
        raise EstimatorError(
            f"{self.name} is a local job, of which nothing is downloaded: what it has left lies in its output_path."
        )

    def resume(self, **_changes: Any) -> TrainingJob:
        """Refuse: who has run a local job has its Estimator.

        Raises:
            EstimatorError: Always.
        """
        raise EstimatorError(f"{self.name} is a local job, which is not started again by its name{self.how_to_resume}.")

    def _s3(self) -> None:
        """Return no client: S3 is then where boto3's configuration says."""

    def _advice(self, status: str) -> str:
        return self.how_to_resume if status == "Stopped" else ""

    @property
    def how_to_resume(self) -> str:
        """What the next ``fit()`` does, as the end of a sentence."""
        if place := self.checkpoint_s3_uri:
            return f"; the next fit() goes on from what checkpoints there are in {place}"
        kept = "checkpoint_s3_uri='file:///directory' keeps them"
        return f"; it keeps no checkpoints, so the next fit() starts anew ({kept})"
