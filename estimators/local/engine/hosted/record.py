"""The record of one job on hosts: its progress, and the decision how each attempt ends.

Requests come from any thread while the job's own thread (`HostedRunner`) works. Each attempt's ending is decided here,
under the record's lock:

1. The first decision stands. A stop before the program has ended by itself ends the job as Stopped, whatever the exit
   code; a later stop changes nothing.
2. A stop overrules an interruption or a loss, after which the job would begin again.
3. The engine's end overrules everything.
4. The loss of a host, if another attempt may follow, overrules the failure of other hosts: they fail because of the
   loss, but may be seen to end first.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, ClassVar, TypeVar

from estimators.hosts.failure import Exit
from estimators.local.engine.errors import invalid
from estimators.local.engine.hosted import states
from estimators.local.engine.hosted.metrics import Metrics
from estimators.local.engine.hosted.request import HostedRequest
from estimators.local.engine.hosted.states import Ending, JobProgress, StoppedError, TimeLimits
from estimators.local.engine.instance_groups import InstanceGroup
from estimators.local.engine.records import JobRecord

KILLED = "InternalServerError: The local platform ended while the job ran, and a new one has taken over."

Request_co = TypeVar("Request_co", bound=HostedRequest, covariant=True)
AnyJob = TypeVar("AnyJob", bound="HostedRecord[Any]")


class HostedRecord(JobRecord[Request_co]):
    """The record of a job on hosts from its creation on."""

    log_group: ClassVar[str]
    """The log group of its hosts' streams."""
    default_command: ClassVar[tuple[str, ...]]
    """Arguments of the image's own program, before the request's."""
    working_directory: ClassVar[str]
    """The working directory of a program that runs without an image, relative to /opt/ml."""

    def __init__(self, request: Request_co, arn: str) -> None:
        super().__init__(request, arn)
        self.metrics = Metrics(request.metrics, changed=self.note_soon)
        # The record's lock, which guards all below. Bound: each wait ends at the next time limit.
        self._changed = threading.Condition(self._lock)
        self._progress = JobProgress.begin(_now())
        self._limits = TimeLimits(request)
        self._hosts = 0
        self._exits: dict[str, Exit] = {}
        self._ending: Ending | None = None
        self._platform_failure: str | None = None
        self._given_up = False
        self._stopped_as = states.STOPPED

    @classmethod
    def from_json(cls: type[AnyJob], document: Mapping[str, Any]) -> AnyJob:
        """Return a job of an earlier platform from its `to_json` document, with times as text.

        Raise ApiError if this platform would refuse its request.
        """
        job = cls(cls._parse(document["request"]), document["arn"])
        job._restore(document)
        return job

    @classmethod
    @abc.abstractmethod
    def _parse(cls, members: Mapping[str, Any]) -> Request_co:
        """Read a request of this kind of job."""

    def to_json(self) -> dict[str, Any]:
        """Return the document to save, from which another platform can resume; times as datetimes."""
        with self._changed:
            return {
                **super().to_json(),
                "metrics": self.metrics.to_json(),
                "stopped_as": self._stopped_as,
                "progress": self._progress.to_json(),
            }

    def _restore(self, document: Mapping[str, Any]) -> None:
        super()._restore(document)
        self.metrics.restore(document["metrics"])
        self._stopped_as = document["stopped_as"]
        self._progress = JobProgress.from_json(document["progress"])
        self._limits.restore(self._progress.created)

    @property
    def directory_name(self) -> str:
        """The name of the job's directory, unique over all kinds of jobs."""
        return self.name

    @property
    def platform_failure(self) -> str | None:
        """The reason if the platform failed this attempt, for example could not send its data; else None."""
        return self._platform_failure

    @property
    def retries(self) -> int:
        """How often the job began again after a failure of the platform."""
        return self._progress.retries

    @property
    def closed(self) -> bool:
        """Whether the engine ends."""
        return self._ending is Ending.CLOSE

    @property
    def ended(self) -> bool:
        """Whether the job has ended and will not change."""
        return self._progress.ended

    @property
    @abc.abstractmethod
    def names_for_programs(self) -> Mapping[str, str]:
        """Environment variables that tell a program its job."""

    @property
    def _may_begin_again(self) -> bool:
        """Whether another attempt follows if the platform is killed."""
        return self.request.spot or self._has_retry()

    # For requests, from any thread.

    @abc.abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return the description without the request's members: the members that lists show and sort by."""

    def stop(self) -> None:
        """Stop the job, unless it is stopping or its program has ended; raise ApiError if the job has ended."""
        with self._changed:
            self._refuse_if_ended()
            self._stop_as(states.STOPPED)

    def interrupt(self) -> None:
        """Reclaim the job's spot instances; raise ApiError unless it is a managed spot job in Training."""
        if not self.request.spot:
            raise invalid(f"{self.name} has no EnableManagedSpotTraining: only managed spot jobs are interrupted.")
        with self._changed:
            if self._progress.secondary_status != states.TRAINING or self._ending is not None:
                state = self._progress.secondary_status
                raise invalid(f"{self.name} is {state} or about to end: only a job in Training can be interrupted.")
            self._decide(Ending.INTERRUPT)

    def note(self) -> None:
        """Save the job as it is now, but not after the engine's end: the next platform must take it for killed."""
        with self._changed:
            if self._ending is not Ending.CLOSE:
                super().note()

    def outlive(self, seen: datetime) -> bool:
        """Resume or end a job whose platform was killed; return whether another attempt follows.

        ``seen`` is the time of the job's last sign of life. If no attempt follows, the job has ended.
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

    def await_change(self, transitions: int, seconds: float) -> None:
        """Wait until the job has more secondary statuses than ``transitions``, or the engine ends.

        Bound: ``seconds``.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.closed or len(self._progress.transitions) > transitions, seconds)

    def close(self) -> None:
        """End the job at once, and save nothing."""
        with self._changed:
            self._ending = Ending.CLOSE
            self._changed.notify_all()

    # For the job's own thread and the threads of its hosts.

    def enter(self, status: str) -> None:
        """Enter a secondary status; raise StoppedError if the job must end instead."""
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
        """Do nothing with the next attempt's groups: only a training job has InstancePreferences to choose from."""

    def await_capacity(self, seconds: float) -> None:
        """Wait ``seconds``; return earlier if the job must end or the platform fails the attempt."""
        until = time.monotonic() + seconds
        with self._changed:
            while not self.must_end() and self._ending is None and (left := until - time.monotonic()) > 0:
                self._changed.wait(min(left, self._limits.seconds_left(self._progress)))

    def begin_training(self, hosts: int) -> None:
        """Enter Training, and start the time for MaxRuntime; raise StoppedError if the job must end instead."""
        with self._changed:
            self.enter(states.TRAINING)
            self._hosts = hosts
            self._limits.begin_training()

    def host_ended(self, host: str, end: Exit) -> None:
        """Note a host's exit, and decide the attempt's ending if this exit does."""
        with self._changed:
            self._exits[host] = end
            if end.lost and (self.request.spot or self._has_retry()):
                if self._ending is Ending.FAILED and self._platform_failure is None:
                    self._ending = None  # rule 4: other hosts failed because of this loss
                self._decide(Ending.LOST)
            elif end.code:
                self._decide(Ending.FAILED)
            elif len(self._exits) == self._hosts:
                self._decide(Ending.DONE)
            self._changed.notify_all()

    def platform_failed(self, reason: str, *, for_good: bool = False) -> None:
        """Fail the attempt because of the platform: its data can't be sent, or its storage is gone.

        The job is retried only if ``reason`` begins with InternalServerError, and never if ``for_good``.
        """
        with self._changed:
            self._given_up = self._given_up or for_good
            if self._ending is None:
                self._platform_failure = reason
                internal = reason.startswith("InternalServerError:")
                self._decide(Ending.LOST if internal and self._has_retry() else Ending.FAILED)

    def retries_after(self, reason: str) -> bool:
        """Return whether another attempt follows one that the platform could not run."""
        with self._changed:
            if self._count_training() and self._ending in (Ending.FAILED, Ending.LOST):
                self._ending = None  # from hosts that were killed because another one could not start
            if self._ending is not None:
                return False
            self.platform_failed(reason)
            return self._ending is Ending.LOST

    def await_ending(self) -> Ending:
        """Wait until this attempt's ending is decided, and return it."""
        with self._changed:
            while self._ending is None:
                self._heed_limits()
                if self._ending is None:
                    self._changed.wait(self._limits.seconds_left(self._progress))
            return self._ending

    def await_exits(self, timeout: float) -> bool:
        """Wait for all hosts, at most ``timeout`` seconds and not after the engine's end; return whether all ended."""
        with self._changed:
            self._changed.wait_for(self._all_ended_or_closed, timeout)
            return len(self._exits) == self._hosts

    def end_training(self) -> tuple[Ending, dict[str, Exit]]:
        """Stop the training time; return the attempt's final ending, and the exits in the order the hosts ended."""
        with self._changed:
            self._count_training()
            assert self._ending is not None
            return self._ending, dict(self._exits)

    def begin_again(self) -> None:
        """Return to Starting: directly for a retry, through Interrupted for a spot job.

        Raise StoppedError if the job must end instead.
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
        """Enter Uploading, whatever the ending."""
        with self._changed:
            if self._ending is Ending.LOST:
                self._ending = Ending.FAILED  # no other attempt follows
            self._move(self._progress.enter(states.UPLOADING, _now()))

    def finish(self, *, failure_reason: str | None = None, model_artifacts: str | None = None) -> None:
        """End the job as Failed if a reason is given; otherwise as Completed, or with the status of its stop."""
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
        """Stop the training time; return whether it was running."""
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
        self._changed.notify_all()

    def _heed_limits(self) -> None:
        if (status := self._limits.reached(self._progress)) is not None:
            self._stop_as(status)

    def _all_ended_or_closed(self) -> bool:
        return len(self._exits) == self._hosts or self._ending is Ending.CLOSE

    def _refuse_if_ended(self) -> None:
        if self.ended:
            raise invalid(
                f"The request was rejected because the {self.kind.word} is in status {self._progress.status}."
            )


def _now() -> datetime:
    return datetime.now(timezone.utc)
