"""One training job as others see it: its description, and the decision of how it ends.

Requests come from any thread while the job's own thread (`JobRunner`) goes its way. Whatever is decided between them is
decided here, under one lock, when it happens, and the first decision stands: a stop that comes before the program has
ended by itself ends the job as Stopped, whatever the exit code; one that comes after changes nothing. Only a stop
overrules an interruption, and only the engine's end overrules a stop. The loss of a spot job's host overrules the
failure of others, which fail of it and may be seen to end first.
"""

from __future__ import annotations

import copy
import enum
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from estimators.hosts.exit import Exit
from estimators.local.engine import states
from estimators.local.engine.description import describe_progress, describe_request, merged
from estimators.local.engine.errors import invalid
from estimators.local.engine.job_store import NO_KEEPER, Keeper
from estimators.local.engine.metrics import Metrics
from estimators.local.engine.request import TrainingRequest
from estimators.local.engine.states import JobProgress

KILLED = "InternalServerError: The local platform ended while the job ran, and is another one now."


class Ending(enum.Enum):
    """Why an attempt of a job ends."""

    DONE = enum.auto()
    """Every host ended with 0."""
    FAILED = enum.auto()
    """A host ended with another code, or its data could not be sent."""
    INTERRUPT = enum.auto()
    """The spot instances are taken away; another life follows."""
    LOST = enum.auto()
    """A spot job's host is gone without notice; another life follows."""
    STOP = enum.auto()
    """Somebody asked for it, or a time limit is reached."""
    CLOSE = enum.auto()
    """The engine ends."""

    @property
    def goes_on(self) -> bool:
        """Whether another life follows."""
        return self in (Ending.INTERRUPT, Ending.LOST)


class StoppedError(Exception):
    """Raised in the job's thread, at the next step, when the job was stopped before its program ran."""


class JobRecord:
    """A job from its creation on."""

    def __init__(self, request: TrainingRequest, arn: str, keeper: Keeper = NO_KEEPER) -> None:
        """Begin a job.

        Args:
            request: What was asked for.
            arn: Its ARN.
            keeper: Saves it, at each change, in the order of the changes.
        """
        self.request = request
        self.arn = arn
        self.metrics = Metrics(request.metrics, changed=lambda: self._keeper.save_soon(self.note))
        self.tags = dict(request.tags)
        self._updates: dict[str, Any] = {}
        self._keeper = keeper
        # Guards `_updates` and all below. The first reason to end stays; only a stop takes the place of one after which
        # the job would begin again.
        self._changed = threading.Condition()
        self._progress = JobProgress.begin(_now())
        self._created = time.monotonic()
        self._training_since: float | None = None
        self._hosts = 0
        self._exits: dict[str, Exit] = {}
        self._ending: Ending | None = None
        self._platform_failure: str | None = None
        self._stopped_as = states.STOPPED

    @classmethod
    def from_json(cls, document: Mapping[str, Any], keeper: Keeper) -> JobRecord:
        """Return a job that an earlier platform has kept.

        Args:
            document: What `to_json` has returned.
            keeper: As for a new one.

        Raises:
            ApiError: The platform would not take its request now.
        """
        job = cls(TrainingRequest.parse(document["request"]), document["arn"], keeper)
        job.tags = dict(document["tags"])
        job.metrics.restore(document["metrics"])
        job._updates, job._stopped_as = dict(document["updates"]), document["stopped_as"]
        job._progress = JobProgress.from_json(document["progress"])
        job._created -= (_now() - job._progress.created).total_seconds()
        return job

    def to_json(self) -> dict[str, Any]:
        """Return all that another platform needs to go on with it; times as datetimes."""
        with self._changed:
            return {
                "request": self.request.members,
                "arn": self.arn,
                "tags": dict(self.tags),
                "updates": self._updates,
                "metrics": self.metrics.describe(),
                "stopped_as": self._stopped_as,
                "progress": self._progress.to_json(),
            }

    @property
    def name(self) -> str:
        """TrainingJobName."""
        return self.request.name

    @property
    def platform_failure(self) -> str | None:
        """What the platform could not do for the job any more, such as send its data, if that is how it ends."""
        return self._platform_failure

    @property
    def closed(self) -> bool:
        """Whether the engine ends."""
        return self._ending is Ending.CLOSE

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self._progress.ended

    # For requests, from any thread.

    def describe(self) -> dict[str, Any]:
        """Return the description as DescribeTrainingJob shows it."""
        with self._changed:
            progress, updates = self._progress, copy.deepcopy(self._updates)
        return {
            **describe_request(self.request.members, updates),
            "TrainingJobArn": self.arn,
            **describe_progress(progress),
            "FinalMetricDataList": self.metrics.describe(),
        }

    def summary(self) -> dict[str, Any]:
        """Return the part of the description that does not repeat the request: what lists show, and are ordered by."""
        return {"TrainingJobName": self.name, "TrainingJobArn": self.arn, **describe_progress(self._progress)}

    def update(self, members: Mapping[str, Any]) -> None:
        """Change members of the description; of a structure, those that are given.

        Raises:
            ApiError: ValidationException, if the job has ended.
        """
        with self._changed:
            self._refuse_if_ended()
            for name, value in members.items():
                self._updates[name] = merged(self._updates.get(name), value)
            self.note()

    def stop(self) -> None:
        """Stop the job; nothing if it is stopping, or if its program has ended already.

        Raises:
            ApiError: ValidationException, if the job has ended.
        """
        with self._changed:
            self._refuse_if_ended()
            self._stop_as(states.STOPPED)

    def interrupt(self) -> None:
        """Take the job's spot instances away.

        Raises:
            ApiError: ValidationException, if the job is not a managed spot job that trains now.
        """
        if not self.request.spot:
            raise invalid(f"{self.name} has no EnableManagedSpotTraining: only managed spot jobs are interrupted.")
        with self._changed:
            if self._progress.secondary_status != states.TRAINING or self._ending is not None:
                state = self._progress.secondary_status
                raise invalid(f"{self.name} is {state} or about to end: only a job in Training can be interrupted.")
            self._decide(Ending.INTERRUPT)

    def note(self) -> None:
        """Have the job kept as it is now; after each change that is not made here."""
        with self._changed:
            # Not how it ends: to whoever keeps it, a job that the engine's end breaks off was killed.
            if self._ending is not Ending.CLOSE:
                self._keeper.save(self.to_json)

    def forget(self) -> None:
        """Have the job kept no more: it is deleted."""
        with self._changed:
            self._keeper.delete()
            self._keeper = NO_KEEPER

    def outlive(self, seen: datetime) -> bool:
        """Come to terms with an earlier platform's end, which it did not see coming.

        Args:
            seen: When the job gave its last sign of life.

        Returns:
            Whether another life follows, as after an interruption. If not, the job has ended.
        """
        with self._changed:
            self._progress = self._progress.broken_off(seen)
            if self._progress.status == "Stopping":
                self._move(self._progress.enter(self._stopped_as, seen))
            elif not self.request.spot or "TuningJobArn" in self._updates:
                self._move(replace(self._progress.enter(states.FAILED, seen), failure_reason=KILLED))
            else:
                self._progress = self._progress.enter(states.INTERRUPTED, seen)
                self._move(self._progress.enter(states.STARTING, _now()))
            return not self.ended

    def close(self) -> None:
        """End at once, with nothing saved."""
        with self._changed:
            self._ending = Ending.CLOSE
            self._changed.notify_all()

    # For the job's own thread and its hosts'.

    def enter(self, status: str) -> None:
        """Go on to a state.

        Raises:
            StoppedError: If the job is to end instead.
        """
        with self._changed:
            if self.must_end():
                raise StoppedError
            self._move(self._progress.enter(status, _now()))

    def must_end(self) -> bool:
        """Return whether the job was stopped, has reached a time limit, or the engine ends."""
        with self._changed:
            self._heed_limits()
            return self._ending in (Ending.STOP, Ending.CLOSE)

    def begin_training(self, hosts: int) -> None:
        """Enter Training; the time that counts for MaxRuntime begins.

        Raises:
            StoppedError: If the job is to end instead.
        """
        with self._changed:
            self.enter(states.TRAINING)
            self._hosts = hosts
            self._training_since = time.monotonic()

    def host_ended(self, host: str, end: Exit) -> None:
        """Note that a host's program ended."""
        with self._changed:
            self._exits[host] = end
            if end.lost and self.request.spot:
                if self._ending is Ending.FAILED and self._platform_failure is None:
                    self._ending = None
                self._decide(Ending.LOST)
            elif end.code:
                self._decide(Ending.FAILED)
            elif len(self._exits) == self._hosts:
                self._decide(Ending.DONE)
            self._changed.notify_all()

    def platform_failed(self, reason: str) -> None:
        """Fail the job for the platform's sake: its data can't be sent, or its storage is gone."""
        with self._changed:
            if self._ending is None:
                self._platform_failure = reason
                self._decide(Ending.FAILED)

    def await_ending(self) -> Ending:
        """Wait until it is decided how this attempt ends."""
        with self._changed:
            while self._ending is None:
                self._heed_limits()
                if self._ending is None:
                    self._changed.wait(self._seconds_left())
            return self._ending

    def await_exits(self, timeout: float) -> bool:
        """Wait until all hosts have ended, at most ``timeout`` seconds and not once the engine ends."""
        with self._changed:
            self._changed.wait_for(self._all_ended_or_closed, timeout)
            return len(self._exits) == self._hosts

    def end_training(self) -> tuple[Ending, dict[str, Exit]]:
        """Stop counting the time; how this attempt ends in the end, and the hosts in the order they did."""
        with self._changed:
            assert self._training_since is not None
            trained = time.monotonic() - self._training_since
            self._training_since = None
            self._move(self._progress.trained(trained))
            assert self._ending is not None
            return self._ending, dict(self._exits)

    def begin_again(self) -> None:
        """Go through Interrupted back to Starting, after an interruption.

        Raises:
            StoppedError: If the job is to end instead.
        """
        with self._changed:
            self.enter(states.INTERRUPTED)
            self._exits, self._ending = {}, None
            self.enter(states.STARTING)

    def upload(self) -> None:
        """Go on to Uploading, however the job ends."""
        with self._changed:
            if self._ending is Ending.LOST:
                self._ending = Ending.FAILED  # no other life follows
            self._move(self._progress.enter(states.UPLOADING, _now()))

    def finish(self, *, failure_reason: str | None = None, model_artifacts: str | None = None) -> None:
        """Come to the end: Failed if there is a reason, else what was decided."""
        with self._changed:
            if failure_reason is not None:
                status = states.FAILED
            else:
                status = states.COMPLETED if self._ending is Ending.DONE else self._stopped_as
            ended = self._progress.enter(status, _now())
            self._move(replace(ended, failure_reason=failure_reason, model_artifacts=model_artifacts))
            self._changed.notify_all()

    def _decide(self, ending: Ending) -> None:
        if self._ending is None:
            self._ending = ending
            self._changed.notify_all()

    def _stop_as(self, status: str) -> None:
        if self._ending is None or self._ending.goes_on:
            self._ending, self._stopped_as = Ending.STOP, status
            self._move(self._progress.enter(states.STOPPING, _now()))
            self._changed.notify_all()

    def _move(self, progress: JobProgress) -> None:
        self._progress = progress
        self.note()

    def _heed_limits(self) -> None:
        if self._runtime_left() <= 0:
            self._stop_as(states.MAX_RUNTIME_EXCEEDED)
        elif self._wait_left() <= 0:
            self._stop_as(states.MAX_WAIT_TIME_EXCEEDED)

    def _seconds_left(self) -> float:
        return min(self._runtime_left(), self._wait_left(), threading.TIMEOUT_MAX)

    def _runtime_left(self) -> float:
        trained = self._progress.training_seconds
        if self._training_since is not None:
            trained += time.monotonic() - self._training_since
        return self.request.max_runtime - trained

    def _wait_left(self) -> float:
        if self.request.max_wait is None:
            return float("inf")
        return self.request.max_wait - (time.monotonic() - self._created)

    def _all_ended_or_closed(self) -> bool:
        return len(self._exits) == self._hosts or self._ending is Ending.CLOSE

    def _refuse_if_ended(self) -> None:
        if self.ended:
            raise invalid(f"The request was rejected because the training job is in status {self._progress.status}.")


def _now() -> datetime:
    return datetime.now(timezone.utc)
