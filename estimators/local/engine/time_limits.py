"""The time that a job has left of its StoppingCondition, by the monotonic clock."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timezone

from estimators.local.engine import states
from estimators.local.engine.job_request import HostedRequest
from estimators.local.engine.states import JobProgress

_NO_LIMIT = float("inf")


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
            (self._runtime_left(progress), states.MAX_RUNTIME_EXCEEDED),
            (self._wait_left(), states.MAX_WAIT_TIME_EXCEEDED),
            (self._pending_left(progress), states.STOPPED),
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
        if self._request.max_pending is None or progress.secondary_status != states.STARTING:
            return _NO_LIMIT
        return self._request.max_pending - (time.monotonic() - self._starting_since)
