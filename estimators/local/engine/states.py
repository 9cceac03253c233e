"""The statuses of a job, their messages, and how one follows another. No clock, no lock.

A processing job has the same secondary statuses, though AWS shows none of them: its program runs in Training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any

STARTING, DOWNLOADING, TRAINING, UPLOADING = "Starting", "Downloading", "Training", "Uploading"
INTERRUPTED, STOPPING = "Interrupted", "Stopping"
COMPLETED, FAILED, STOPPED = "Completed", "Failed", "Stopped"
MAX_RUNTIME_EXCEEDED, MAX_WAIT_TIME_EXCEEDED = "MaxRuntimeExceeded", "MaxWaitTimeExceeded"

_MESSAGES = {
    STARTING: "Starting the training job",
    DOWNLOADING: "Downloading input data",
    TRAINING: "Training image download completed. Training in progress.",
    INTERRUPTED: "The managed spot instances were interrupted",
    STOPPING: "Stopping the training job",
    UPLOADING: "Uploading generated training model",
    COMPLETED: "Training job completed",
    FAILED: "Training job failed",
    STOPPED: "Training job stopped",
    MAX_RUNTIME_EXCEEDED: "Training job runtime exceeded MaxRuntimeInSeconds provided",
    MAX_WAIT_TIME_EXCEEDED: "Training job exceeded MaxWaitTimeInSeconds provided",
}
"""The StatusMessage of each secondary status."""

_PRIMARY = {
    STOPPING: "Stopping",
    COMPLETED: "Completed",
    FAILED: "Failed",
    STOPPED: "Stopped",
    MAX_RUNTIME_EXCEEDED: "Stopped",
    MAX_WAIT_TIME_EXCEEDED: "Stopped",
}
"""The status that a secondary status sets; all others leave the status unchanged."""

_TERMINAL = frozenset({"Completed", "Failed", "Stopped"})


@dataclass(kw_only=True, slots=True, frozen=True)
class Transition:
    """One secondary status, and the time that the job was in it."""

    status: str
    start: datetime
    end: datetime | None = None

    def describe(self) -> dict[str, Any]:
        """Return the transition as DescribeTrainingJob shows it."""
        end = {} if self.end is None else {"EndTime": self.end}
        return {"Status": self.status, "StartTime": self.start, **end, "StatusMessage": _MESSAGES[self.status]}


@dataclass(kw_only=True, slots=True, frozen=True)
class JobProgress:
    """The progress of a job: all its changing state except metrics."""

    status: str
    transitions: tuple[Transition, ...]
    modified: datetime
    training_start: datetime | None = None
    training_end: datetime | None = None
    training_seconds: float = 0.0
    """The sum over all ended attempts."""
    training_since: datetime | None = None
    """The start of the attempt that trains now or was broken off; None without one."""
    retries: int = 0
    """How often the job began again by its RetryStrategy."""
    failure_reason: str | None = None
    model_artifacts: str | None = None
    exit_message: str | None = None
    """A processing job's ExitMessage."""

    @classmethod
    def begin(cls, now: datetime) -> JobProgress:
        """Return the progress of a new job."""
        return cls(status="InProgress", transitions=(Transition(status=STARTING, start=now),), modified=now)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> JobProgress:
        """Return the progress of a `to_json` document, with times as text."""
        transitions = (Transition(**{**each, **_times(each, Transition)}) for each in document["transitions"])
        return cls(**{**document, **_times(document, cls), "transitions": tuple(transitions)})

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON, with times as datetimes."""
        return asdict(self)

    @property
    def secondary_status(self) -> str:
        """The current secondary status."""
        return self.transitions[-1].status

    @property
    def created(self) -> datetime:
        """When the job was created."""
        return self.transitions[0].start

    @property
    def ended(self) -> bool:
        """Whether the status is terminal."""
        return self.status in _TERMINAL

    def broken_off(self, seen: datetime) -> JobProgress:
        """Return the progress of a job whose platform was killed; an attempt in Training counts until ``seen``."""
        return self if self.training_since is None else self.trained((seen - self.training_since).total_seconds())

    def trained(self, seconds: float) -> JobProgress:
        """Return the progress after an attempt that trained for ``seconds``."""
        total = self.training_seconds + max(0.0, seconds)
        return replace(self, training_seconds=total, training_since=None)

    def retried(self, now: datetime) -> JobProgress:
        """Return the progress in Starting with one more retry."""
        return replace(self.enter(STARTING, now), retries=self.retries + 1)

    def enter(self, status: str, now: datetime) -> JobProgress:
        """Return the progress in a new secondary status; the last one ends, and a terminal one ends at once."""
        primary = _PRIMARY.get(status, self.status)
        ended = replace(self.transitions[-1], end=now)
        entered = Transition(status=status, start=now, end=now if primary in _TERMINAL else None)
        start = now if status == TRAINING and self.training_start is None else self.training_start
        end = now if primary in _TERMINAL and start is not None else None
        since = now if status == TRAINING else self.training_since
        return replace(
            self,
            status=primary,
            transitions=(*self.transitions[:-1], ended, entered),
            modified=now,
            training_start=start,
            training_end=end,
            training_since=since,
        )


def _times(document: Mapping[str, Any], kind: type[JobProgress | Transition]) -> dict[str, datetime]:
    """Return the datetime fields of a dataclass that a document has."""
    names = (field.name for field in fields(kind) if "datetime" in str(field.type))
    return {name: datetime.fromisoformat(document[name]) for name in names if document[name] is not None}
