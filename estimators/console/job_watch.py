"""Watch a job for the pages: one thread follows it, and stores what it reads for all pages that show the job.

However many pages are open, the API is asked by one thread for each job, and about once a second by all of them
together.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from estimators.console.jobs import JobSource
from estimators.errors import EstimatorError
from estimators.job_handle.events import ENDED, MetricValue, StatusChange
from estimators.job_handle.follower import Follower
from estimators.job_handle.metrics import attempts_begun
from estimators.log_reader import LogLine, LogReader
from smddp.display_text import shown_line
from smddp.errors import SmddpError
from smddp.secret_text import masked_text
from smddp.storage.s3_errors import Cancelled

if TYPE_CHECKING:
    from smddp.goodput import Account

logger = logging.getLogger(__name__)

MOST_WATCHED = 16
"""Most jobs watched at once. Beyond it, the watch that was not requested for longest is closed."""
MOST_CHARACTERS = 64 << 20
"""Most characters kept of one job's log. Beyond it, the first lines are dropped."""
MOST_IN_A_LINE = 4000
MOST_VALUES = 50_000
"""Most values kept of one metric. Beyond it, every second value is dropped."""
_MOST_VERDICTS = 5
_VERDICT = re.compile(r"\b(?:hang|slow): (?=(?:(?:the |all )?ranks|rank)\b)")
"""How a verdict of the watchdog begins in a job's log: see ``smddp.watch``."""
_IDLE_SECONDS = 300.0
"""A watch stops after this time without a page request."""
_AFTER_FAILURE_SECONDS = 15.0
_LEDGER_SECONDS = 15.0
"""Seconds from one reading of the goodput ledger of a job to the next."""
_LINE_CHARACTERS = 100
"""Approximate overhead of a line, counted as characters."""


@dataclass(slots=True)
class HostLines:
    """The number and the last time of a host's log lines so far."""

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
    """One value out of this many is kept."""
    count: int = 0
    last: float = 0.0

    def add(self, point: MetricPoint) -> None:
        """Append the next value, or skip it if the curve is thinned out."""
        self.last = point.value
        if self.count % self.every == 0:
            self.points.append(point)
        self.count += 1
        if len(self.points) > MOST_VALUES:
            self.points = self.points[::2]
            self.every *= 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWindow:
    """Some lines of a log, or of the lines that match a search."""

    total: int
    """Number of all lines, or of those that match."""
    dropped: int
    """Number of lines dropped before the first that is kept."""
    start: int
    """The number of the first of `lines` among the `total`."""
    lines: list[tuple[int, int, str, str]]
    """Number in the log, milliseconds since 1970, host and text of each line."""


class JobWatch:
    """Follows one job from its beginning to its end, or until no page has asked for it for a while."""

    def __init__(self, source: JobSource, name: str, pause: Callable[[], float]) -> None:
        """Describe the job and start to follow it; `pause` returns the minimum seconds between two polls.

        Raise botocore's error if the job does not exist, may not be described, or AWS does not answer.
        """
        self._source = source
        self.name = name
        self._pause = pause
        self._asked = time.monotonic()
        self._closed = threading.Event()
        self._looked = threading.Event()
        # Guards the log lines, hosts, curves, verdicts and `_description`. Held only to copy or append, never during a
        # request, and no other lock is taken under it; `Watches._lock` may be held when it is taken. Bound:
        # MOST_CHARACTERS of lines, MOST_VALUES of each metric. Only the following thread writes `failure` and
        # `_failed_at`, without the lock.
        self._lock = threading.Lock()
        self._lines: list[tuple[int, str, str]] = []
        self._characters = 0
        self._dropped = 0
        self._hosts: dict[str, HostLines] = {}
        self._curves: dict[str, MetricCurve] = {}
        self._verdicts: deque[str] = deque(maxlen=_MOST_VERDICTS)
        self._failed_at: float | None = None
        self._ledger_read = -math.inf
        self.goodput: Account | None = None
        """What the run's wall time was, some seconds ago; None if unknown. Only the following thread sets it."""
        self.failure = ""
        """Why following failed; empty otherwise."""
        self._description = self._describe()
        threading.Thread(target=self._follow, name=f"watch {name}", daemon=True).start()

    @property
    def is_stale(self) -> bool:
        """Whether a new watch must replace this one: it was closed or idle, or failed some time ago."""
        failed = self._failed_at is not None and time.monotonic() - self._failed_at > _AFTER_FAILURE_SECONDS
        return failed or self._closed.is_set()

    @property
    def is_read(self) -> bool:
        """Whether the log has been read up to its end as of the last poll."""
        return self._looked.is_set()

    def look(self, seconds: float = 0.0) -> None:
        """Register a page request, and wait up to `seconds` for the first reading of the log."""
        self._asked = time.monotonic()
        self._looked.wait(seconds)

    def close(self) -> None:
        """Stop following; the data read so far stays available."""
        self._closed.set()

    @property
    def description(self) -> Mapping[str, Any]:
        """The last answer of DescribeTrainingJob."""
        with self._lock:
            description: Mapping[str, Any] = self._description
            return description

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended, so its description no longer changes."""
        return self.description["TrainingJobStatus"] in ENDED

    @property
    def changes(self) -> list[StatusChange]:
        """The job's changes of secondary status so far."""
        return [StatusChange.of(each) for each in self.description.get("SecondaryStatusTransitions", [])]

    def hosts(self) -> dict[str, HostLines]:
        """Return the log counters of each host, by name."""
        with self._lock:
            return {name: HostLines(host.lines, host.last) for name, host in sorted(self._hosts.items())}

    def curves(self) -> dict[str, MetricCurve]:
        """Return a copy of each metric's values so far."""
        with self._lock:
            return {
                name: MetricCurve(list(curve.points), curve.every, curve.count, curve.last)
                for name, curve in self._curves.items()
            }

    def verdicts(self) -> list[str]:
        """Return the last lines in which the watchdog named a rank that hangs or is slow."""
        with self._lock:
            return list(self._verdicts)

    def by_attempt(self, points: list[MetricPoint]) -> list[list[MetricPoint]]:
        """Split a metric's values by attempt: before the first interruption, after it, and so on."""
        begun = attempts_begun(self.changes)
        attempts: list[list[MetricPoint]] = [[] for _ in range(len(begun) + 1)]
        for point in points:
            attempts[bisect_right(begun, point.time)].append(point)
        return attempts

    def window(self, start: int, count: int, *, search: str = "", host: str = "") -> LogWindow:
        """Return up to `count` lines from number `start` of those that match; a negative `start` counts from the end.

        `search` ignores case. An empty `search` or `host` matches every line.
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
        description = self._source.sagemaker.describe_training_job(TrainingJobName=self.name)
        with self._lock:
            self._description = description
        return description

    def _follow(self) -> None:
        def open_log(cancelled: Callable[[], bool]) -> LogReader:
            return LogReader(self._source.logs, self.name, cancelled)

        try:
            with closing(Follower(self._describe, open_log, with_values=True).looks(self._closed.is_set)) as looks:
                for event in looks:
                    if not isinstance(event, float):
                        self._take(event)
                        continue
                    self._read_ledger()  # before a page may count the job as read
                    self._looked.set()
                    idle = time.monotonic() - self._asked > _IDLE_SECONDS
                    if idle or self._closed.wait(max(event, self._pause())):
                        self._closed.set()
                        return
            self._read_ledger()
        except Cancelled:
            return
        except Exception as error:  # any error: the page waits for this thread, and shows why it ended
            logger.exception("the job %s is not followed any more", self.name)
            self.failure, self._failed_at = str(error), time.monotonic()
        self._looked.set()

    def _read_ledger(self) -> None:
        """Read the job's goodput ledger, if it keeps checkpoints and the last reading is old; errors are logged."""
        if "CheckpointConfig" not in self.description:
            return
        if not self.has_ended and time.monotonic() - self._ledger_read < _LEDGER_SECONDS:
            return
        self._ledger_read = time.monotonic()
        try:
            self.goodput = self._source.job(self.name).goodput()
        except (SmddpError, EstimatorError, OSError) as error:
            logger.info("the goodput ledger of %s can't be read: %s", self.name, error)

    def _take(self, event: StatusChange | LogLine | MetricValue) -> None:
        if isinstance(event, LogLine):
            text = shown_line(event.message)
            more = f" … ({len(text) - MOST_IN_A_LINE} more characters)" if len(text) > MOST_IN_A_LINE else ""
            text = masked_text(text[:MOST_IN_A_LINE]) + more
            with self._lock:
                self._lines.append((event.timestamp, event.host, text))
                self._characters += len(text) + _LINE_CHARACTERS
                if _VERDICT.search(text):
                    self._verdicts.append(text)
                host = self._hosts.setdefault(event.host, HostLines())
                host.lines, host.last = host.lines + 1, event.time
                if self._characters > MOST_CHARACTERS:
                    self._drop()
        elif isinstance(event, MetricValue):
            with self._lock:
                curve = self._curves.setdefault(event.metric, MetricCurve())
                curve.add(MetricPoint(time=event.time, step=event.step, value=event.value))

    def _drop(self) -> None:
        """Drop the first tenth of the lines: deleting them one by one would shift the whole list each time."""
        count = max(1, len(self._lines) // 10)
        self._characters -= sum(len(text) + _LINE_CHARACTERS for _, _, text in self._lines[:count])
        self._dropped += count
        del self._lines[:count]


class Watches:
    """The watches of all jobs that pages currently show."""

    def __init__(self, source: JobSource) -> None:
        """Keep the source of the jobs. Sends no request."""
        self._source = source
        # Guards `_watches`. Taken before `JobWatch._lock`, never after it; never held during a request, so a slow AWS
        # blocks only the page that asks. Bound: MOST_WATCHED watches.
        self._lock = threading.Lock()
        self._watches: OrderedDict[str, JobWatch] = OrderedDict()

    def of(self, name: str) -> JobWatch:
        """Return the watch of a job; start one if there is none or it is stale. Raise as `JobWatch` does."""
        with self._lock:
            watch = known = self._watches.get(name)
        if watch is None or watch.is_stale:
            watch = JobWatch(self._source, name, self._pause)
            with self._lock:
                meanwhile = self._watches.get(name)
                if meanwhile is known or meanwhile is None:
                    self._watches[name] = watch
                else:  # another thread has replaced it first
                    watch.close()
                    watch = meanwhile
        with self._lock:
            if self._watches.get(name) is watch:  # it may have been crowded out by now
                self._watches.move_to_end(name)
            while len(self._watches) > MOST_WATCHED:
                self._watches.popitem(last=False)[1].close()
        watch.look()
        return watch

    def close(self) -> None:
        """Stop following all jobs."""
        with self._lock:
            for watch in self._watches.values():
                watch.close()

    def _pause(self) -> float:
        """Return the minimum seconds between two polls of one job: all jobs together get at most one poll a second."""
        with self._lock:
            return float(max(1, sum(not watch.has_ended and not watch.is_stale for watch in self._watches.values())))
