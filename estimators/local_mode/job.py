"""A job of this machine that has ended: there is nothing to wait for, and no service that kept its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from estimators.errors import EstimatorError
from estimators.log_reader import LogLine
from estimators.training_job import TrainingJob

if TYPE_CHECKING:
    from mypy_boto3_sagemaker.type_defs import DescribeTrainingJobResponseTypeDef


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

    def lines(self) -> Iterator[LogLine]:
        """Nothing keeps the log of a local job.

        Raises:
            EstimatorError: Always.
        """
        raise EstimatorError(
            f"{self.name} has no log: nothing keeps that of a local job, and fit() has shown it. "
            "estimators.local.LocalSageMaker keeps it."
        )

    def wait(self, logs: bool = True) -> None:
        """Return at once: the job has ended."""

    def _advice(self, status: str) -> str:
        return self.how_to_resume if status == "Stopped" else ""

    @property
    def how_to_resume(self) -> str:
        """What the next ``fit()`` does, as the end of a sentence."""
        if place := self.checkpoint_s3_uri:
            return f"; the next fit() goes on from what checkpoints there are in {place}"
        kept = "checkpoint_s3_uri='file:///directory' keeps them"
        return f"; it keeps no checkpoints, so the next fit() starts anew ({kept})"
