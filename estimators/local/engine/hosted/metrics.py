"""A job's metrics: the values of each metric definition, read from the lines that the job prints.

Another process does the matching, so no regex can block this one. The thread that reads a host's lines never waits for
that process: one thread sends the lines, another takes the answers. The buffer before the sender is bounded; if the
process falls behind, the oldest lines are dropped, and the log says how many.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from estimators.job_handle.matcher import MATCH_SECONDS, MEAN_SECONDS
from estimators.job_handle.metrics import MatcherProcess
from estimators.local.engine.hosted.metric_statistics import MetricPublisher, MetricSummary
from estimators.local.engine.records import StoredLine
from estimators.metric_definition import MetricDefinition, finite, pieces
from smddp.display_text import counted

logger = logging.getLogger(__name__)

MOST_VALUES = 10_000
"""Values of a metric that `history` keeps."""
MAX_WAITING_BYTES = 16 << 20
PLATFORM_PREFIX = "[platform]"
"""The beginning of a line of the platform in a job's log."""
_MOST_AGAIN = 20_000
"""Lines that are searched again; more can't wait for the search when a platform is killed."""
SETTLE_SECONDS = 10.0
"""How long a job's end waits for lines that are not matched yet."""
_LINE_BYTES = 64  # overhead of a line, besides its text
_BATCH_LINES = 256


class Metrics:
    """Reads the lines of all hosts, from any thread; keeps the last value and the statistics of each metric.

    ``changed`` is called after each value, by a thread of this object's own.
    """

    def __init__(self, definitions: Iterable[MetricDefinition], changed: Callable[[], None] = lambda: None) -> None:
        self._definitions = tuple(definitions)
        self._changed = changed
        self._summaries: dict[str, MetricSummary] = {}
        self._history: dict[str, list[float]] = {definition.name: [] for definition in self._definitions}
        # Guards `_matching`; `read` holds it until the line is queued, so `settle` never ends the process in between.
        # Taken before the locks of `Matching` and of the log. Values need no lock: one thread of `Matching` adds them.
        self._lock = threading.Lock()
        self._matching: Matching | None = None
        self._broken = False
        self._restored: dict[str, datetime] = {}
        """While lines are searched again: the time of each metric's restored value."""
        self._say: Callable[[str], None] = logger.warning
        self._publisher: MetricPublisher | None = None

    def report_to(self, say: Callable[[str], None]) -> None:
        """Write messages about lost metrics to this log from now on."""
        self._say = say

    def publish_to(self, publisher: MetricPublisher) -> None:
        """Pass every value to a publisher from now on."""
        self._publisher = publisher

    def read(self, line: str, timestamp: int) -> None:
        """Queue a line for the search, with its time in milliseconds since 1970.

        Values that are not finite numbers are left out, as CloudWatch does.
        """
        if not self._definitions or self._broken:
            return
        with self._lock:
            if self._matching is None:
                regexes = [definition.regex.pattern for definition in self._definitions]
                try:
                    self._matching = Matching(regexes, self._found, self._say)
                except OSError as error:
                    self._broken = True
                    self._say(f"[platform] There are no metrics: what reads them could not be started ({error})")
                    return
            for piece in pieces(line):
                self._matching.send(piece, timestamp)

    def settle(self) -> None:
        """Wait, for a bounded time, until the values of all lines so far are sent; then end the process."""
        with self._lock:
            matching, self._matching = self._matching, None
        if matching is not None:
            matching.finish()
        if self._publisher is not None:
            self._publisher.flush()

    def describe(self) -> list[dict[str, Any]]:
        """Return FinalMetricDataList, in the order of the definitions."""
        return [
            {"MetricName": name, "Value": summary.last, "Timestamp": summary.time}
            for name, summary in self.summaries().items()
        ]

    def summaries(self) -> dict[str, MetricSummary]:
        """Return the statistics of each metric that has a value, in the order of the definitions."""
        found = ((definition.name, self._summaries.get(definition.name)) for definition in self._definitions)
        return {name: summary for name, summary in found if summary is not None}

    def to_json(self) -> dict[str, Any]:
        """Return the statistics to save."""
        return {name: summary.to_json() for name, summary in self.summaries().items()}

    def restore(self, document: Mapping[str, Any] | list[Mapping[str, Any]]) -> None:
        """Restore the statistics from a `to_json` document, with each time as text.

        Older platforms wrote a list of last values without statistics; no trial component shows their jobs.
        """
        if isinstance(document, list):
            for each in document:
                time = datetime.fromisoformat(each["Timestamp"])
                self._summaries[each["MetricName"]] = MetricSummary.of(each["Value"], time)
        else:
            self._summaries.update({name: MetricSummary.from_json(each) for name, each in document.items()})

    def read_again(self, lines_after: Callable[[int], Iterable[StoredLine]]) -> None:
        """Search the last lines of an earlier platform from the newest restored value on, and `settle`.

        ``lines_after`` returns the lines later than a time in milliseconds since 1970. A killed platform may have kept
        lines in the log whose values it had not saved. The matcher answers in the order of the lines, so older ones
        have been searched; in the millisecond of the newest value, a metric that has a value keeps it.
        """
        times = {name: summary.time for name, summary in self._summaries.items()}
        newest = max((int(each.timestamp() * 1000) for each in times.values()), default=0)
        self._restored = times
        for line in deque(lines_after(newest - 1) if self._definitions else (), maxlen=_MOST_AGAIN):
            if not line.line.startswith(PLATFORM_PREFIX):
                self.read(line.line, line.time)
        self.settle()
        self._restored = {}

    def last(self, name: str) -> float | None:
        """Return the last value of a metric, or None without a value."""
        summary = self._summaries.get(name)
        return None if summary is None else summary.last

    def history(self, name: str) -> tuple[float, ...]:
        """Return the first `MOST_VALUES` values of a metric, in the order they came."""
        return tuple(self._history[name])

    def _found(self, number: int, text: str | None, timestamp: int) -> None:
        """Add the value that a definition's regex matched; ``text`` is None if the regex was given up."""
        name = self._definitions[number].name
        if text is None:
            self._say(
                f"[platform] The metric {name} is given up: its regex took over {MATCH_SECONDS:g} seconds of CPU time "
                f"for one line, or {MEAN_SECONDS * 1000:g} ms a line"
            )
        elif (value := finite(text)) is not None:
            found = datetime.fromtimestamp(timestamp / 1000, timezone.utc)
            if name in self._restored and found <= self._restored[name]:
                return
            before = self._summaries.get(name)
            self._summaries[name] = MetricSummary.of(value, found) if before is None else before.added(value, found)
            if self._publisher is not None:
                self._publisher.add(name, value, found)
            if len(self._history[name]) < MOST_VALUES:
                self._history[name].append(value)
            self._changed()


class Matching:
    """A matcher process from the first line to the last; raise OSError if it can't be started.

    ``found`` gets the number of a regex, the text of its first group, or None if the regex was given up, and the time
    of the line.
    """

    def __init__(
        self, regexes: Sequence[str], found: Callable[[int, str | None, int], None], say: Callable[[str], None]
    ) -> None:
        self._found = found
        self._say = say
        # Guards the four below; no other lock is taken while it is held. Bound: lines of at most MAX_WAITING_BYTES
        # wait, and the oldest are dropped first.
        self._changed = threading.Condition()
        self._lines: deque[tuple[str, int]] = deque()
        self._waiting = 0
        self._dropped = 0
        self._ended = False
        self._process = MatcherProcess(regexes)
        self._threads = [
            threading.Thread(target=self._send_all, name="metrics out", daemon=True),
            threading.Thread(target=self._take_answers, name="metrics in", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def send(self, line: str, timestamp: int) -> None:
        """Queue a line for the search, with its time."""
        with self._changed:
            self._lines.append((line, timestamp))
            self._waiting += len(line) + _LINE_BYTES
            while self._waiting > MAX_WAITING_BYTES:
                self._drop()
            self._changed.notify()

    def finish(self) -> None:
        """Wait until all lines are searched, at most `SETTLE_SECONDS`, and end the process."""
        deadline = time.monotonic() + SETTLE_SECONDS
        with self._changed:
            self._ended = True
            self._changed.notify()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            self._say(
                f"[platform] The last lines are not searched for metrics: that took over {SETTLE_SECONDS:g} seconds"
            )
        self._process.kill()
        for thread in self._threads:
            thread.join()
        if self._dropped:
            were = counted(self._dropped, "line was", "lines were")
            self._say(
                f"[platform] {were} not searched for metrics: they came faster than the definitions' regexes take them"
            )

    def _drop(self) -> None:
        self._waiting -= len(self._lines.popleft()[0]) + _LINE_BYTES
        self._dropped += 1

    def _send_all(self) -> None:
        try:
            with self._process.lines as pipe:
                self._process.begin()
                while batch := self._take_batch():
                    pipe.writelines(f"{json.dumps(line)}\n" for line in batch)
                    pipe.flush()
        except BrokenPipeError:
            if not self._ended:
                self._say("[platform] Lines are not searched for metrics any more: the process that does it has ended")

    def _take_batch(self) -> list[tuple[str, int]]:
        """Wait for the next lines, and return them; empty after the last line."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._ended)
            batch = [self._lines.popleft() for _ in range(min(_BATCH_LINES, len(self._lines)))]
            self._waiting -= sum(len(line) + _LINE_BYTES for line, _ in batch)
            return batch

    def _take_answers(self) -> None:
        with self._process.answers as answers:
            for line in answers:
                if not line.endswith("\n"):  # the process was killed in the middle of it
                    return
                self._found(*json.loads(line))
