"""Turn the end of a job into an exception."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from estimators.errors import TrainingJobFailed, TrainingJobStopped

ENDED = frozenset({"Completed", "Failed", "Stopped"})
"""The final statuses."""

_STOPPED_BY: Mapping[str, str] = {
    "MaxRuntimeExceeded": "it ran for the whole of max_run (MaxRuntimeInSeconds); give it more, or resume it from its "
    "checkpoint",
    "MaxWaitTimeExceeded": "it took the whole of max_wait (MaxWaitTimeInSeconds), waiting included; give it more, or "
    "resume it from its checkpoint",
    "Interrupted": "its spot instances were taken away",
    "Stopped": "somebody called StopTrainingJob",
}
"""The cause of a job's stop, by its secondary status."""


def require_completed(name: str, description: Mapping[str, Any], advice: Callable[[str], str]) -> None:
    """Raise TrainingJobFailed or TrainingJobStopped unless the job has completed.

    The message ends with `advice(status)`.
    """
    status, secondary = description["TrainingJobStatus"], description.get("SecondaryStatus", "")
    if status == "Completed":
        return
    kind, verb, unknown = TrainingJobFailed, "failed", "the platform gives no reason"
    if status == "Stopped":
        kind, verb, unknown = TrainingJobStopped, "was stopped", _STOPPED_BY.get(secondary, "it was stopped")
    reason = description.get("FailureReason", unknown)
    raise kind(
        f"{name} {verb} ({secondary or status}): {reason}{advice(status)}",
        job_name=name,
        status=status,
        secondary_status=secondary,
        reason=reason,
    )
