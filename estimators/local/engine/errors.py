"""The two ways in which the engine says no: to a request at once, or to a job in its FailureReason."""

from __future__ import annotations


class ApiError(Exception):
    """A request that is refused, as AWS's API refuses it.

    Args:
        code: AWS's name of the error, such as ``ValidationException``.
        message: What was found, what is allowed and what to do.
        status: The HTTP status that carries it.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


class FailedJobError(Exception):
    """The job can't go on; the text is its FailureReason, ``ClientError: …`` if the user can mend it."""


def invalid(message: str) -> ApiError:
    """Return the error of a request that does not follow the rules."""
    return ApiError("ValidationException", message)


def not_found(job_name: str, kind: str = "training job") -> ApiError:
    """Return the error of a request about a job that is not there (AWS gives it this code, not ResourceNotFound)."""
    return invalid(f"Requested resource not found: there is no {kind} {job_name}.")
