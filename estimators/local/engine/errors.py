"""The engine's two refusals: of a request at once, and of a job by its FailureReason."""

from __future__ import annotations

from collections.abc import Iterable

from estimators.request_rules import BrokenRule


class ApiError(Exception):
    """A request is refused with AWS's error code, such as ``ValidationException``, and an HTTP status."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


class FailedJobError(Exception):
    """The job can't continue; the text is its FailureReason, ``ClientError: …`` if the user can fix it."""


def invalid(message: str) -> ApiError:
    """Return the ValidationException of a request that breaks a rule."""
    return ApiError("ValidationException", message)


def not_found(job_name: str, kind: str = "training job") -> ApiError:
    """Return the error for an absent job: ValidationException, as on AWS, not ResourceNotFound."""
    return invalid(f"Requested resource not found: there is no {kind} {job_name}.")


def refuse(broken: Iterable[BrokenRule]) -> None:
    """Raise one ApiError with all broken rules, if any."""
    if said := " ".join(map(str, broken)):
        raise invalid(said)
