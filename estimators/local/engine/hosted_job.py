"""One job on hosts, of any kind, as others see it: the decision of how it ends.

Requests come from any thread while the job's own thread (`JobRunner`) goes its way. Whatever is decided between them is
decided here, under one lock, when it happens, and the first decision stands: a stop that comes before the program has
ended by itself ends the job as Stopped, whatever the exit code; one that comes after changes nothing. Only a stop
overrules an interruption, and only the engine's end overrules a stop. The loss of a spot job's host overrules the
failure of others, which fail of it and may be seen to end first.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, ClassVar, Generic, TypeVar

from estimators.hosts.exit import Exit
from estimators.local.engine import states
from estimators.local.engine.ending import Ending, StoppedError
from estimators.local.engine.errors import invalid
from estimators.local.engine.hosts import InstanceGroup
from estimators.local.engine.job_request import JobRequest
from estimators.local.engine.job_store import NO_SAVER, RecordSaver
from estimators.local.engine.metrics import Metrics
from estimators.local.engine.states import JobProgress
from estimators.local.engine.time_limits import TimeLimits

KILLED = "InternalServerError: The local platform ended while the job ran, and is another one now."

Request_co = TypeVar("Request_co", bound=JobRequest, covariant=True)
AnyJob = TypeVar("AnyJob", bound="HostedJob[Any]")


class HostedJob(abc.ABC, Generic[Request_co]):
    """A job on hosts from its creation on."""

    kind: ClassVar[str]
    """What it is, as messages say it: ``training job``."""
    default_command: ClassVar[tuple[str, ...]]
    """What the image's own program is given before the arguments."""
    working_directory: ClassVar[str]
    """Where a program runs that has no image's directory, relative to /opt/ml."""

    def __init__(self, request: Request_co, arn: str, saver: RecordSaver = NO_SAVER) -> None:
        """Begin a job.

        Args:
            request: What was asked for.
            arn: Its ARN.
            saver: Saves it, at each change, in the order of the changes.
        """
        self.request = request
        self.arn = arn
        self.metrics = Metrics(request.metrics, changed=lambda: self._saver.save_soon(self.note))
        self.tags = dict(request.tags)
        self._saver = saver
        # Guards all below, and what other kinds of jobs add to it. The first reason to end stays; only a stop takes the
        # place of one after which the job would begin again.
        self._changed = threading.Condition()
        self._progress = JobProgress.begin(_now())
        self._limits = TimeLimits(request)
        self._hosts = 0
        self._exits: dict[str, Exit] = {}
        self._ending: Ending | None = None
        self._platform_failure: str | None = None
        self._given_up = False
        self._stopped_as = states.STOPPED

    @classmethod
    def from_json(cls: type[AnyJob], document: Mapping[str, Any], saver: RecordSaver) -> AnyJob:
        """Return a job that an earlier platform has kept.

        Args:
            document: What `to_json` has returned.
            saver: As for a new one.

        Raises:
            ApiError: The platform would not take its request now.
        """
        job = cls(cls._parse(document["request"]), document["arn"], saver)
        job._restore(document)
        return job

    @classmethod
    @abc.abstractmethod
    def _parse(cls, members: Mapping[str, Any]) -> Request_co:
        """Read a request of this kind of job."""

    def to_json(self) -> dict[str, Any]:
        """Return all that another platform needs to go on with it; times as datetimes."""
        with self._changed:
            return {
                "request": self.request.members,
                "arn": self.arn,
                "tags": dict(self.tags),
                "metrics": self.metrics.to_json(),
                "stopped_as": self._stopped_as,
                "progress": self._progress.to_json(),
            }

    def _restore(self, document: Mapping[str, Any]) -> None:
        """Become the job that an earlier platform has kept; ``document`` is what `to_json` has returned."""
        self.tags = dict(document["tags"])
        self.metrics.restore(document["metrics"])
        self._stopped_as = document["stopped_as"]
        self._progress = JobProgress.from_json(document["progress"])
        self._limits.restore(self._progress.created)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.request.name

    @property
    def directory_name(self) -> str:
        """How the job's directory is called; no two jobs have the same, of whichever kinds they are."""
        return self.name

    @property
    def platform_failure(self) -> str | None:
        """What the platform could not do for the job any more, such as send its data, if that is how it ends."""
        return self._platform_failure

    @property
    def retries(self) -> int:
        """How often it began again because the platform had failed it."""
        return self._progress.retries

    @property
    def closed(self) -> bool:
        """Whether the engine ends."""
        return self._ending is Ending.CLOSE

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self._progress.ended

    @property
    @abc.abstractmethod
    def names_for_programs(self) -> Mapping[str, str]:
        """Variables that tell a program which job it belongs to."""

    @property
    def _may_begin_again(self) -> bool:
        """Whether another life follows when an earlier platform has ended without seeing it come."""
        return self.request.spot or self._has_retry()

    # For requests, from any thread.

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the description as AWS shows it."""

    @abc.abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return the part of the description that does not repeat the request: what lists show, and are ordered by."""

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
                self._saver.save(self.to_json)

    def forget(self) -> None:
        """Have the job kept no more: it is deleted."""
        with self._changed:
            self._saver.delete()
            self._saver = NO_SAVER

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
            elif not self._may_begin_again:
                self._move(replace(self._progress.enter(states.FAILED, seen), failure_reason=KILLED))
            elif not self.request.spot:
                self._move(self._progress.retried(seen))
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

    def allocated(self, groups: Sequence[InstanceGroup]) -> None:
        """Note of which groups the hosts of the next attempt are."""

    def await_capacity(self, seconds: float) -> None:
        """Return after so many seconds, or when the job is to end, be it for the platform's sake."""
        until = time.monotonic() + seconds
        with self._changed:
            while not self.must_end() and self._ending is None and (left := until - time.monotonic()) > 0:
                self._changed.wait(min(left, self._limits.seconds_left(self._progress)))

    def begin_training(self, hosts: int) -> None:
        """Enter Training; the time that counts for MaxRuntime begins.

        Raises:
            StoppedError: If the job is to end instead.
        """
        with self._changed:
            self.enter(states.TRAINING)
            self._hosts = hosts
            self._limits.begin_training()

    def host_ended(self, host: str, end: Exit) -> None:
        """Note that a host's program ended."""
        with self._changed:
            self._exits[host] = end
            if end.lost and (self.request.spot or self._has_retry()):
                if self._ending is Ending.FAILED and self._platform_failure is None:
                    self._ending = None
                self._decide(Ending.LOST)
            elif end.code:
                self._decide(Ending.FAILED)
            elif len(self._exits) == self._hosts:
                self._decide(Ending.DONE)
            self._changed.notify_all()

    def platform_failed(self, reason: str, *, for_good: bool = False) -> None:
        """Fail the attempt for the platform's sake: its data can't be sent, or its storage is gone.

        Args:
            reason: In AWS's form: only after an InternalServerError may another attempt follow.
            for_good: Whether another attempt would fail, too.
        """
        with self._changed:
            self._given_up = self._given_up or for_good
            if self._ending is None:
                self._platform_failure = reason
                internal = reason.startswith("InternalServerError:")
                self._decide(Ending.LOST if internal and self._has_retry() else Ending.FAILED)

    def retries_after(self, reason: str) -> bool:
        """Return whether an attempt that the platform could not run is followed by another one."""
        with self._changed:
            if self._count_training() and self._ending in (Ending.FAILED, Ending.LOST):
                self._ending = None  # what hosts did that were ended because another one could not be started
            if self._ending is not None:
                return False
            self.platform_failed(reason)
            return self._ending is Ending.LOST

    def await_ending(self) -> Ending:
        """Wait until it is decided how this attempt ends."""
        with self._changed:
            while self._ending is None:
                self._heed_limits()
                if self._ending is None:
                    self._changed.wait(self._limits.seconds_left(self._progress))
            return self._ending

    def await_exits(self, timeout: float) -> bool:
        """Wait until all hosts have ended, at most ``timeout`` seconds and not once the engine ends."""
        with self._changed:
            self._changed.wait_for(self._all_ended_or_closed, timeout)
            return len(self._exits) == self._hosts

    def end_training(self) -> tuple[Ending, dict[str, Exit]]:
        """Stop counting the time; how this attempt ends in the end, and the hosts in the order they did."""
        with self._changed:
            self._count_training()
            assert self._ending is not None
            return self._ending, dict(self._exits)

    def begin_again(self) -> None:
        """Go back to Starting: through Interrupted after an interruption, at once where RetryStrategy has it.

        Raises:
            StoppedError: If the job is to end instead.
        """
        with self._changed:
            if self.must_end():
                raise StoppedError
            self._count_training()
            retried = self._platform_failure is not None or not self.request.spot
            if not retried:
                self.enter(states.INTERRUPTED)
            self._exits, self._ending, self._platform_failure = {}, None, None
            self._limits.begin_attempt()
            now = _now()
            self._move(self._progress.retried(now) if retried else self._progress.enter(states.STARTING, now))

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

    def _has_retry(self) -> bool:
        return not self._given_up and self._progress.retries < self.request.max_retries

    def _count_training(self) -> bool:
        """Stop counting the time; whether it was counted."""
        if (trained := self._limits.end_training()) is None:
            return False
        self._move(self._progress.trained(trained))
        return True

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
        if (status := self._limits.reached(self._progress)) is not None:
            self._stop_as(status)

    def _all_ended_or_closed(self) -> bool:
        return len(self._exits) == self._hosts or self._ending is Ending.CLOSE

    def _refuse_if_ended(self) -> None:
        if self.ended:
            raise invalid(f"The request was rejected because the {self.kind} is in status {self._progress.status}.")


def _now() -> datetime:
    return datetime.now(timezone.utc)
