"""A job that Local Mode has run: there is nothing to wait for, and no service that kept its log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from estimators.errors import EstimatorError
from estimators.log_reader import LogLine
from estimators.training_job import TrainingJob

if TYPE_CHECKING:
    from estimators.sdk.v2 import Session


class LocalModeJob(TrainingJob):
    """A completed job of the SDK's Local Mode."""

    def __init__(self, name: str, session: Session, *, model: str, checkpoints: str | None) -> None:
        """Point at a job.

        Args:
            name: The job's name.
            session: The session of Local Mode that ran it.
            model: The URI of its model archive.
            checkpoints: Where its checkpoints are, if it keeps any.
        """
        super().__init__(name, session)
        self._model = model
        self._checkpoints = checkpoints

    @property
    def secondary_status(self) -> str:
        """The same as `status`: Local Mode has no finer one."""
        return self.status

    @property
    def model_data(self) -> str:
        """The URI of the model archive, ``file://`` or ``s3://``."""
        return self._model

    @property
    def checkpoint_s3_uri(self) -> str | None:
        """Where the checkpoints are, ``file://`` or ``s3://``, if the job keeps any."""
        return self._checkpoints

    def metrics(self) -> NoReturn:
        """Local Mode reads no metrics.

        Raises:
            EstimatorError: Always.
        """
        raise EstimatorError(f"{self.name} has no metrics: the SDK's Local Mode reads none. {_INSTEAD}")

    def lines(self) -> Iterator[LogLine]:
        """Local Mode keeps no log.

        Raises:
            EstimatorError: Always.
        """
        raise EstimatorError(f"{self.name} has no log: the SDK's Local Mode keeps none, fit() has shown it. {_INSTEAD}")

    def wait(self, logs: bool = True) -> None:
        """Return at once: the job is done."""


_INSTEAD = "estimators.local.LocalSageMaker keeps both."
