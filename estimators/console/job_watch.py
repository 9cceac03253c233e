"""A job that somebody looks at: one thread follows it, and keeps what was seen for all pages that show it.

However many pages are open, the API is asked by one thread a job, and by all of them together about once a second.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from estimators.console.place import Place
from estimators.job_handle.events import MetricValue, StatusChange
from estimators.job_handle.follower import Follower
from estimators.job_handle.metric_table import attempts_begun
from estimators.job_handle.outcome import ENDED
from estimators.log_reader import LogLine, LogReader
from estimators.secret_text import masked_text
from smddp.process.shown_text import shown_line

logger = logging.getLogger(__name__)

MOST_WATCHED = 16
"""Jobs; of more, the one that was not looked at for longest is forgotten."""
MOST_CHARACTERS = 64 << 20
"""Of one job's log; its first lines are dropped when it has more."""
MOST_IN_A_LINE = 4000
MOST_VALUES = 50_000
"""Of one metric; when it has more, every second one is dropped."""
_IDLE_SECONDS = 300.0
"""A job at which nobody looks for so long is not followed any more."""
_AFTER_FAILURE_SECONDS = 15.0
_LINE_CHARACTERS = 100
"""What a line takes beside its text, about."""


@dataclass(slots=True)
class HostLines:
    """What a host has logged so far."""

    lines: int = 0
    last: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """One value of a metric."""

    time: datetime
    step: float | None
    value: float


@dataclass(slots=True)
class MetricCurve:
    """The values of a metric, in the order of the log."""

    points: list[MetricPoint] = field(default_factory=list)
    every: int = 1
    """Of so many values one is kept."""
    count: int = 0
    last: float = 0.0

    def add(self, point: MetricPoint) -> None:
        """Take in the next value."""
        self.last = point.value
        if self.count % self.every == 0:
            self.points.append(point)
        self.count += 1
        if len(self.points) > MOST_VALUES:
            self.points = self.points[::2]
            self.every *= 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWindow:
    """Some lines of a log, or of those that were searched for."""

    total: int
    """How many lines there are, or were found."""
    dropped: int
    """How many lines came before the first that is kept."""
    start: int
    """The number of the first of `lines` among the `total`."""
    lines: list[tuple[int, int, str, str]]
    """Of each its number in the log, milliseconds since 1970, host and text."""


class JobWatch:
    """Follows one job from its beginning to its end, or until nobody looks."""

    def __init__(self, place: Place, name: str, pause: Callable[[], float]) -> None:
        """Ask for the job, and begin to follow it.

        Args:
            place: Where it is.
            name: The job's name.
            pause: Gives the least seconds between two looks.

        Raises:
            botocore.exceptions.ClientError: There is no such job, or it may not be described.
            botocore.exceptions.BotoCoreError: Nobody answers.
        """
        self._place = place
        self.name = name
        self._pause = pause
        self._asked = time.monotonic()
        self._closed = threading.Event()
        self._looked = threading.Event()
        # Guards all below. Bound: MOST_CHARACTERS of lines, MOST_VALUES of each metric.
        self._lock = threading.Lock()
        self._lines: list[tuple[int, str, str]] = []
        self._characters = 0
        self._dropped = 0
        self._hosts: dict[str, HostLines] = {}
        self._curves: dict[str, MetricCurve] = {}
        self._failed_at: float | None = None
        self.failure = ""
        """Why the job is not followed any more; empty if it is, or has ended."""
        self._description = self._describe()
        threading.Thread(target=self._follow, name=f"watch {name}", daemon=True).start()

    @property
    def is_stale(self) -> bool:
        """Whether another watch is to take its place: nobody looked for long, or it failed some time ago."""
        failed = self._failed_at is not None and time.monotonic() - self._failed_at > _AFTER_FAILURE_SECONDS
        return failed or self._closed.is_set()

    @property
    def is_read(self) -> bool:
        """Whether all that the log held at the last look has been read."""
        return self._looked.is_set()

    def look(self, seconds: float = 0.0) -> None:
        """Say that somebody looks, and wait so long at most for the first reading of the log."""
        self._asked = time.monotonic()
        self._looked.wait(seconds)

    def close(self) -> None:
        """Stop following; what was seen stays."""
        self._closed.set()

    @property
    def description(self) -> Mapping[str, Any]:
        """What DescribeTrainingJob said last."""
        with self._lock:
            description: Mapping[str, Any] = self._description
            return description

    @property
    def has_ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.description["TrainingJobStatus"] in ENDED

    @property
    def changes(self) -> list[StatusChange]:
        """Its secondary statuses so far."""
        return [StatusChange.of(each) for each in self.description.get("SecondaryStatusTransitions", [])]

    def hosts(self) -> dict[str, HostLines]:
        """Return what each host has logged, by its name."""
        with self._lock:
            return {name: HostLines(host.lines, host.last) for name, host in sorted(self._hosts.items())}

    def curves(self) -> dict[str, MetricCurve]:
        """Return the values of each metric so far."""
        with self._lock:
            return {
                name: MetricCurve(list(curve.points), curve.every, curve.count, curve.last)
                for name, curve in self._curves.items()
            }

    def by_attempt(self, points: list[MetricPoint]) -> list[list[MetricPoint]]:
        """Return a metric's values apart: those before the first interruption, those after it, and so on."""
        begun = attempts_begun(self.changes)
        attempts: list[list[MetricPoint]] = [[] for _ in range(len(begun) + 1)]
        for point in points:
            attempts[bisect_right(begun, point.time)].append(point)
        return attempts

    def window(self, start: int, count: int, *, search: str = "", host: str = "") -> LogWindow:
        """Return some lines.

        Args:
            start: The first of them, by its number among those that are found; negative: from the end.
            count: How many at most.
            search: Text that a line must have, in upper or lower case; empty: any.
            host: The host that must have said it; empty: any.
        """
        with self._lock:
            lines, dropped = list(self._lines), self._dropped
        wanted = search.casefold()
        numbers: range | list[int] = range(len(lines))
        if wanted or host:
            numbers = [
                number
                for number, (_, origin, text) in enumerate(lines)
                if (not host or origin == host) and (not wanted or wanted in text.casefold())
            ]
        first = max(0, len(numbers) + start) if start < 0 else min(start, len(numbers))
        shown = [(dropped + number + 1, *lines[number]) for number in numbers[first : first + count]]
        return LogWindow(total=len(numbers), dropped=dropped, start=first, lines=shown)

    def _describe(self) -> Any:
        description = self._place.sagemaker.describe_training_job(TrainingJobName=self.name)
        with self._lock:
            self._description = description
        return description

    def _follow(self) -> None:
        from smddp.storage.s3_retries import Cancelled

        def open_log(cancelled: Callable[[], bool]) -> LogReader:
            return LogReader(self._place.logs, self.name, cancelled)

        try:
            with closing(Follower(self._describe, open_log, with_values=True).looks(self._closed.is_set)) as looks:
                for event in looks:
                    if not isinstance(event, float):
                        self._take(event)
                        continue
                    self._looked.set()
                    idle = time.monotonic() - self._asked > _IDLE_SECONDS
                    if idle or self._closed.wait(max(event, self._pause())):
                        self._closed.set()
                        return
        except Cancelled:
            return
        except Exception as error:  # whatever it is, the page waits for this thread and shows why it ended
            logger.exception("the job %s is not followed any more", self.name)
            self.failure, self._failed_at = str(error), time.monotonic()
        self._looked.set()

    def _take(self, event: StatusChange | LogLine | MetricValue) -> None:
        if isinstance(event, LogLine):
            text = shown_line(event.message)
            more = f" … ({len(text) - MOST_IN_A_LINE} more characters)" if len(text) > MOST_IN_A_LINE else ""
            text = masked_text(text[:MOST_IN_A_LINE]) + more
            with self._lock:
                self._lines.append((event.timestamp, event.host, text))
                self._characters += len(text) + _LINE_CHARACTERS
                host = self._hosts.setdefault(event.host, HostLines())
                host.lines, host.last = host.lines + 1, event.time
                if self._characters > MOST_CHARACTERS:
                    self._drop()
        elif isinstance(event, MetricValue):
            with self._lock:
                curve = self._curves.setdefault(event.metric, MetricCurve())
                curve.add(MetricPoint(time=event.time, step=event.step, value=event.value))

    def _drop(self) -> None:
        """Drop the first tenth of the lines: to drop each by itself would move all others each time."""
        count = max(1, len(self._lines) // 10)
        self._characters -= sum(len(text) + _LINE_CHARACTERS for _, _, text in self._lines[:count])
        self._dropped += count
        del self._lines[:count]


class Watches:
    """The jobs that are looked at."""

    def __init__(self, place: Place) -> None:
        """Nothing is asked yet.

        Args:
            place: Where the jobs are.
        """
        self._place = place
        self._lock = threading.Lock()
        self._watches: OrderedDict[str, JobWatch] = OrderedDict()

    def of(self, name: str) -> JobWatch:
        """Return the watch of a job, which is begun if there is none.

        Raises:
            botocore.exceptions.ClientError: There is no such job, or it may not be described.
            botocore.exceptions.BotoCoreError: Nobody answers.
        """
        with self._lock:
            known = self._watches.get(name)
        if known is None or known.is_stale:
            new = JobWatch(self._place, name, self._pause)
            with self._lock:
                if self._watches.get(name) is known:
                    self._watches[name] = new
                else:
                    new.close()  # somebody else was faster
        with self._lock:
            self._watches.move_to_end(name)
            watch = self._watches[name]
            while len(self._watches) > MOST_WATCHED:
                self._watches.popitem(last=False)[1].close()
        watch.look()
        return watch

    def close(self) -> None:
        """Stop following all."""
        with self._lock:
            for watch in self._watches.values():
                watch.close()

    def _pause(self) -> float:
        """Return the seconds after which each job may be looked at again, so that all together are asked once each."""
        with self._lock:
            return float(max(1, sum(not watch.has_ended and not watch.is_stale for watch in self._watches.values())))
