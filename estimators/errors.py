"""What the launching side raises: a job that must not be sent as it is, and a job that did not end well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smddp.process.shown_text import shown_text

if TYPE_CHECKING:
    from estimators.problem import Problem


class EstimatorError(ValueError):
    """A job's description can't work. Nothing was uploaded or started.

    Its message has no control sequences of a terminal, whatever names it quotes.
    """

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(shown_text(message))
        self.problems = tuple(problems)
        """Each thing that is wrong, where a plan found it."""


class TrainingJobFailed(RuntimeError):  # noqa: N818 - it names what happened to the job
    """A training job ended, and not as Completed.

    Args:
        message: The whole story, with where the logs are; it is kept without control sequences of a terminal.
        job_name: The job's name.
        status: ``Failed`` or ``Stopped``.
        secondary_status: The finer status, such as ``MaxRuntimeExceeded``.
        reason: The job's FailureReason, as the job wrote it: data, not for a terminal. For a stopped job, what stopped
            it.
    """

    def __init__(self, message: str, *, job_name: str, status: str, secondary_status: str, reason: str) -> None:
        super().__init__(shown_text(message))
        self.job_name = job_name
        self.status = status
        self.secondary_status = secondary_status
        self.reason = reason


class TrainingJobStopped(TrainingJobFailed):
    """A training job was stopped, by somebody or by a limit, before its script was done."""
