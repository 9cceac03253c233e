"""Errors of the launching side: a job that can't be sent as described, and a job that did not complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smddp.process.terminal_text import shown_text

if TYPE_CHECKING:
    from estimators.problem import Problem


class EstimatorError(ValueError):
    """A job's description can't work. Nothing was uploaded or started.

    The message contains no terminal control sequences, even if a name in it did.
    """

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(shown_text(message))
        self.problems = tuple(problems)
        """Each problem that a plan found; empty for other errors."""


class TrainingJobFailed(RuntimeError):  # noqa: N818 - it names what happened to the job
    """A training job ended as Failed or Stopped.

    Args:
        message: What happened and where the logs are. Terminal control sequences are removed.
        job_name: The job's name.
        status: ``Failed`` or ``Stopped``.
        secondary_status: The finer status, such as ``MaxRuntimeExceeded``.
        reason: The job's FailureReason, unchanged, so it may contain control sequences. For a stopped job, what stopped
            it.
    """

    def __init__(self, message: str, *, job_name: str, status: str, secondary_status: str, reason: str) -> None:
        super().__init__(shown_text(message))
        self.job_name = job_name
        self.status = status
        self.secondary_status = secondary_status
        self.reason = reason


class TrainingJobStopped(TrainingJobFailed):
    """A training job was stopped, by a person or by a limit, before its script ended."""
