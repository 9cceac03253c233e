"""How far a job is, and what may end it: its statuses, the endings of its attempts, its time limits and lost hosts.

`JobProgress` and `Ending` are values; the record of the job, whose lock guards them, decides which comes next. A
processing job has the same secondary statuses, though AWS shows none of them: its program runs in Training.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from typing import Any

from estimators.local.engine.hosted.request import HostedRequest

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
_NO_LIMIT = float("inf")
_MOST_LOSSES = 3
IN_VAIN = f"These are {_MOST_LOSSES} losses in a row without a new checkpoint: the job does not begin again."


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
        """Return the progress in a new secondary status: the last status ends, a terminal new status ends at once."""
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
    """Return a dataclass's datetime fields, read from a document."""
    names = (field.name for field in fields(kind) if "datetime" in str(field.type))
    return {name: datetime.fromisoformat(document[name]) for name in names if document[name] is not None}


class Ending(enum.Enum):
    """Why an attempt of a job ends."""

    DONE = enum.auto()
    """Every host exited with code 0."""
    FAILED = enum.auto()
    """A host exited with another code, its data could not be sent, or the platform failed for good."""
    INTERRUPT = enum.auto()
    """The spot instances are reclaimed; another attempt follows."""
    LOST = enum.auto()
    """A host vanished or the platform failed, and another attempt follows: of a spot job, or by RetryStrategy."""
    STOP = enum.auto()
    """A client stopped the job, or a time limit was reached."""
    CLOSE = enum.auto()
    """The engine ends."""

    @property
    def goes_on(self) -> bool:
        """Whether another attempt follows."""
        return self in (Ending.INTERRUPT, Ending.LOST)


class StoppedError(Exception):
    """Raised in the job's thread at its next step if the job must end: a stop, a time limit, or the engine's end."""


class TimeLimits:
    """Counts the seconds that a job uses of its request's limits. The job's lock guards it."""

    def __init__(self, request: HostedRequest) -> None:
        self._request = request
        self._created = self._starting_since = time.monotonic()
        self._training_since: float | None = None

    def restore(self, created: datetime) -> None:
        """Count from the creation of a job of an earlier platform."""
        self._created -= (datetime.now(timezone.utc) - created).total_seconds()

    def begin_attempt(self) -> None:
        """Start the time that an attempt waits for hosts."""
        self._starting_since = time.monotonic()

    def begin_training(self) -> None:
        """Start the time that programs run."""
        self._training_since = time.monotonic()

    def end_training(self) -> float | None:
        """Stop the time that programs run; return its seconds in this attempt, or None if it was not running."""
        if self._training_since is None:
            return None
        trained, self._training_since = time.monotonic() - self._training_since, None
        return trained

    def reached(self, progress: JobProgress) -> str | None:
        """Return the status in which the job ends by the first limit that is reached, or None."""
        left, status = self._first(progress)
        return status if left <= 0 else None

    def seconds_left(self, progress: JobProgress) -> float:
        """Return the seconds until the first limit, at most `threading.TIMEOUT_MAX`."""
        return min(self._first(progress)[0], threading.TIMEOUT_MAX)

    def _first(self, progress: JobProgress) -> tuple[float, str]:
        return min(
            (self._runtime_left(progress), MAX_RUNTIME_EXCEEDED),
            (self._wait_left(), MAX_WAIT_TIME_EXCEEDED),
            (self._pending_left(progress), STOPPED),
        )

    def _runtime_left(self, progress: JobProgress) -> float:
        trained = progress.training_seconds
        if self._training_since is not None:
            trained += time.monotonic() - self._training_since
        return self._request.max_runtime - trained

    def _wait_left(self) -> float:
        if self._request.max_wait is None:
            return _NO_LIMIT
        return self._request.max_wait - (time.monotonic() - self._created)

    def _pending_left(self, progress: JobProgress) -> float:
        if self._request.max_pending is None or progress.secondary_status != STARTING:
            return _NO_LIMIT
        return self._request.max_pending - (time.monotonic() - self._starting_since)


class HostLossLimit:
    """Limits how often in a row a spot job may lose a host without a new checkpoint.

    The program does not cause the loss of a machine, so the job begins again. Without a limit, a program that kills
    itself, which looks like a lost machine, would begin again for ever.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def too_many(self, ending: Ending, *, progressed: bool) -> bool:
        """Count the end of an attempt; return whether the job must fail now.

        ``progressed`` says whether the attempt brought a checkpoint to S3.
        """
        self._in_a_row = self._in_a_row + 1 if ending is Ending.LOST and not progressed else 0
        return self._in_a_row >= _MOST_LOSSES
