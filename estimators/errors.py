"""A job's problems, found before it is sent, and the exceptions raised for a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from smddp.display_text import shown_text

Severity = Literal["error", "warning"]
_LISTED = 40
"""`there_are` names up to this many names in full; of more it shows about `_SAMPLED`, evenly spaced."""
_SAMPLED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem in one parameter of a job: the value found, the allowed values, and the remedy."""

    severity: Severity
    """An error can't work, or would waste money; a warning may be intended."""
    parameter: str
    """The Estimator's parameter, or ``inputs`` or ``job_name`` of ``fit()``."""
    found: str
    """The bad value, or the missing one."""
    remedy: str
    """The allowed values, and how to correct the parameter."""

    def __str__(self) -> str:
        return f"{self.parameter}: {self.found}. {self.remedy}"


def error(parameter: str, found: str, remedy: str) -> Problem:
    """Return a problem that prevents the job from being sent."""
    return Problem(severity="error", parameter=parameter, found=found, remedy=remedy)


def warning(parameter: str, found: str, remedy: str) -> Problem:
    """Return a problem that is logged, and does not prevent the job from being sent."""
    return Problem(severity="warning", parameter=parameter, found=found, remedy=remedy)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``Did you mean …?`` with the names nearest to `name`; without any, list all or some of `known`."""
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"Did you mean {' or '.join(map(repr, close))}?"
    return there_are(names)


def there_are(known: Iterable[str]) -> str:
    """Return ``There are: …`` with all or some of the known names."""
    names = sorted(known)
    if len(names) > _LISTED:
        return f"There are {len(names)}, such as {', '.join(names[:: len(names) // _SAMPLED])}."
    return f"There are: {', '.join(names)}."


class EstimatorError(ValueError):
    """A job's description can't work, and nothing was uploaded or started; or AWS did not start the job.

    The message contains no terminal control sequences, even if a name in it did.
    """

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(shown_text(message))
        self.problems = tuple(problems)
        """Each problem that a plan found; empty for other errors."""


def not_sent(reason: object, remedy: str) -> EstimatorError:
    """Return the error of a job that passed its checks and could not be sent, with the reason and the remedy."""
    return EstimatorError(f"The job was not sent: {str(reason).rstrip('.')}. {remedy}")


def require_valid(problems: Iterable[Problem], unchecked: Sequence[str] = ()) -> None:
    """Raise EstimatorError, which lists all errors, if a job has any; and what is `unchecked` because of them."""
    errors = tuple(problem for problem in problems if problem.severity == "error")
    if errors:
        listed = "\n".join(f"  - {problem}" for problem in errors)
        count = "one thing is" if len(errors) == 1 else f"{len(errors)} things are"
        corrected = "it is corrected" if len(errors) == 1 else "they are corrected"
        later = f"\nNot checked until {corrected}: {', '.join(unchecked)}." if unchecked else ""
        raise EstimatorError(f"Nothing was sent: {count} wrong with the job:\n{listed}{later}", errors)


def shown_reason(reason: str) -> str:
    """Return a FailureReason for people: the exit code, which SageMaker appends to its last line, has its own line.

    A reason of one line is unchanged, but for control sequences.
    """
    what, comma, code = reason.rpartition(", exit code: ")
    is_own_line = "\n" in what and code.isdecimal()
    return shown_text(f"{what}\n{comma[2:]}{code}" if is_own_line else reason)


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
