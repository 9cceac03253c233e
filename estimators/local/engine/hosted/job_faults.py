"""The faults that one job meets: no capacity at an attempt's start; a lost host or a reclaim while it trains.

Faults of the job's own tag come before the platform's. An attempt's faults are fixed when it begins, and logged; a
fault that is set later waits for the next attempt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from estimators.local.chaos import Chaos, JobFault, LoseHost, NoCapacity, Reclaim
from estimators.local.engine.errors import ApiError, FailedJobError
from estimators.local.engine.hosted.record import HostedRecord
from estimators.local.engine.hosted.request import Preferences
from estimators.local.engine.instance_groups import InstanceGroup
from estimators.metric_definition import MetricDefinition, pieces, regex_of_line

CAPACITY_ERROR = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance type."
)
"""AWS's words."""
_STEP = MetricDefinition.parse("step", regex_of_line("step"))

F = TypeVar("F", bound=JobFault)


class JobFaults:
    """Decides which faults the attempts of a job meet, from the job's tag and the platform's ``chaos``."""

    def __init__(self, job: HostedRecord[Any], chaos: Chaos) -> None:
        self._job = job
        self._sources = (Chaos(job.request.faults), chaos)
        self._attempt: AttemptFaults | None = None
        self._lacking: NoCapacity | None = None

    def allocate(self, preferences: Preferences, say: Callable[[str], None]) -> tuple[InstanceGroup, ...]:
        """Return the first of the alternative instance groups that has capacity, else the last one.

        ``say`` logs each alternative passed over.
        """
        *preferred, last = preferences
        for groups in preferred:
            lacking = self._meet_lack_of(groups)
            if lacking is None:
                self._lacking = None
                return groups
            say(f"[platform] chaos: {lacking}: no {groups[0].instance_type}: the next preference is tried")
        self._lacking = self._meet_lack_of(last)
        return last

    def await_capacity(self, say: Callable[[str], None]) -> None:
        """Wait until the groups allocated last have capacity, or the job must end.

        Raise FailedJobError if the lack of capacity has no end.
        """
        fault = self._lacking
        if fault is None:
            return
        if fault.seconds is None:
            raise FailedJobError(CAPACITY_ERROR)
        say(f"[platform] chaos: {fault}: the job waits in Starting")
        self._job.await_capacity(fault.seconds)

    def begin_attempt(self, hosts: Collection[str], say: Callable[[str], None]) -> AttemptFaults:
        """Return the faults of an attempt that is about to train."""
        lost = self._meet(LoseHost, lambda fault: fault.host in hosts)
        reclaimed = self._meet(Reclaim) if self._job.request.spot else None
        self._attempt = AttemptFaults(self._job, [fault for fault in (lost, reclaimed) if fault is not None], say)
        return self._attempt

    def read(self, line: str) -> None:
        """Look for a step in a line that a host printed."""
        if self._attempt is not None:
            self._attempt.read(line)

    def _meet_lack_of(self, groups: Sequence[InstanceGroup]) -> NoCapacity | None:
        types = {None, *(group.instance_type for group in groups)}
        return self._meet(NoCapacity, lambda fault: fault.instance_type in types)

    def _meet(self, kind: type[F], fits: Callable[[F], bool] = lambda _: True) -> F | None:
        who = f"job {self._job.name}"
        return next(filter(None, (source.meet(kind, who, fits) for source in self._sources)), None)


class AttemptFaults:
    """Triggers the faults of one attempt while it trains; ``say`` writes to the job's log."""

    def __init__(self, job: HostedRecord[Any], faults: list[LoseHost | Reclaim], say: Callable[[str], None]) -> None:
        self._job = job
        self._say = say
        self._lose: Callable[[str], None] = lambda _: None
        # Guards all below. Released before a fault is triggered: an interruption takes the job's lock, and `read` must
        # not wait for a fault.
        self._changed = threading.Condition()
        self._ahead = faults
        self._began = 0.0
        self._step = -1.0
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"faults of {job.name}", daemon=True)
        for fault in faults:
            say(f"[platform] chaos: {fault} is set for this attempt")

    def read(self, line: str) -> None:
        """Look for a step in a line that a host printed."""
        if not self._ahead:
            return
        steps = [step for step in map(_STEP.value, pieces(line)) if step is not None]
        if steps:
            with self._changed:
                self._step = max(self._step, *steps)
                self._changed.notify()

    def start(self, lose: Callable[[str], None]) -> None:
        """Begin to count the seconds, once all hosts run; ``lose`` kills a host without notice."""
        if self._ahead:
            self._lose = lose
            self._began = time.monotonic()
            self._thread.start()

    def end(self) -> None:
        """Trigger no more faults, and wait for the one in progress."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while (fault := self._next()) is not None:
            self._say(f"[platform] chaos: {fault}: now")
            if isinstance(fault, LoseHost):
                self._lose(fault.host)
                continue
            try:
                self._job.interrupt()
            except ApiError as error:
                self._say(f"[platform] chaos: {fault} comes too late: {error.message}")

    def _next(self) -> LoseHost | Reclaim | None:
        """Wait until the next fault is due, and return it; None if no other follows."""
        with self._changed:
            while self._ahead and not self._ended:
                due = [fault for fault in self._ahead if self._seconds_to(fault) <= 0]
                if due:
                    self._ahead.remove(due[0])
                    return due[0]
                self._changed.wait(min(min(map(self._seconds_to, self._ahead)), threading.TIMEOUT_MAX))
            return None

    def _seconds_to(self, fault: LoseHost | Reclaim) -> float:
        if fault.step is not None:
            return 0 if self._step >= fault.step else float("inf")
        assert fault.seconds is not None
        return self._began + fault.seconds - time.monotonic()
