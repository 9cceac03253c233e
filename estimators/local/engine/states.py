"""A job's status: which states there are, what is said of each, how one follows another. No clock, no lock.

A processing job goes through them, too, though on AWS it shows its status alone: Training is when its program runs.
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
"""What the platform says of each secondary status."""

_PRIMARY = {
    STOPPING: "Stopping",
    COMPLETED: "Completed",
    FAILED: "Failed",
    STOPPED: "Stopped",
    MAX_RUNTIME_EXCEEDED: "Stopped",
    MAX_WAIT_TIME_EXCEEDED: "Stopped",
}
"""The status that comes with a secondary status; with every other one the status stays as it is."""

_TERMINAL = frozenset({"Completed", "Failed", "Stopped"})


@dataclass(kw_only=True, slots=True, frozen=True)
class Transition:
    """One secondary status, and when the job was in it."""

    status: str
    start: datetime
    end: datetime | None = None

    def describe(self) -> dict[str, Any]:
        """Return the change as DescribeTrainingJob shows it."""
        end = {} if self.end is None else {"EndTime": self.end}
        return {"Status": self.status, "StartTime": self.start, **end, "StatusMessage": _MESSAGES[self.status]}


@dataclass(kw_only=True, slots=True, frozen=True)
class JobProgress:
    """How far a job has come: all of a job that changes, but its metrics."""

    status: str
    transitions: tuple[Transition, ...]
    modified: datetime
    training_start: datetime | None = None
    training_end: datetime | None = None
    training_seconds: float = 0.0
    """Summed over all attempts of the job that have ended."""
    training_since: datetime | None = None
    """When the attempt began that trains now, or was broken off."""
    retries: int = 0
    """How often the job began again, as its RetryStrategy asks."""
    failure_reason: str | None = None
    model_artifacts: str | None = None
    exit_message: str | None = None
    """A processing job's: what its programs say of their end."""

    @classmethod
    def begin(cls, now: datetime) -> JobProgress:
        """Return a job that was just created."""
        return cls(status="InProgress", transitions=(Transition(status=STARTING, start=now),), modified=now)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> JobProgress:
        """Return what `to_json` has returned."""
        transitions = (Transition(**{**each, **_times(each, Transition)}) for each in document["transitions"])
        return cls(**{**document, **_times(document, cls), "transitions": tuple(transitions)})

    def to_json(self) -> dict[str, Any]:
        """Return it as `write_time` makes JSON of it."""
        return asdict(self)

    @property
    def secondary_status(self) -> str:
        """The state that the job is in."""
        return self.transitions[-1].status

    @property
    def created(self) -> datetime:
        """When the job was created."""
        return self.transitions[0].start

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.status in _TERMINAL

    def broken_off(self, seen: datetime) -> JobProgress:
        """Return what there is to go on from if nothing has followed since a time: until then it trained, if it did."""
        return self if self.training_since is None else self.trained((seen - self.training_since).total_seconds())

    def trained(self, seconds: float) -> JobProgress:
        """Return the progress with the time that an attempt has trained, whose training is over."""
        total = self.training_seconds + max(0.0, seconds)
        return replace(self, training_seconds=total, training_since=None)

    def retried(self, now: datetime) -> JobProgress:
        """Return the progress with one more retry, from Starting on."""
        return replace(self.enter(STARTING, now), retries=self.retries + 1)

    def enter(self, status: str, now: datetime) -> JobProgress:
        """Return the next secondary status; the last one ends, and a terminal one ends at once."""
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


def write_time(value: object) -> str:
    """Return a time as text: what `json.dumps` needs for its ``default``."""
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _times(document: Mapping[str, Any], kind: type[JobProgress | Transition]) -> dict[str, datetime]:
    """Return the members of a document that are times in a dataclass, and are there."""
    names = (field.name for field in fields(kind) if "datetime" in str(field.type))
    return {name: datetime.fromisoformat(document[name]) for name in names if document[name] is not None}
