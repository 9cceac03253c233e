"""A job's metrics: the values of each metric definition, read from the lines that the job prints.

Another process does the matching, so no regex can block this one: see ``matching.py``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from estimators.job_handle.matcher import MATCH_SECONDS, MEAN_SECONDS
from estimators.local.engine.matching import Matching
from estimators.local.engine.metric_publisher import MetricPublisher
from estimators.local.engine.metric_summary import MetricSummary
from estimators.metric_definition import MetricDefinition, finite, pieces

logger = logging.getLogger(__name__)

MOST_VALUES = 10_000
"""Values of a metric that `history` keeps."""


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
        self._say: Callable[[str], None] = logger.warning
        self._publisher: MetricPublisher | None = None

    def report_to(self, say: Callable[[str], None]) -> None:
        """Write messages about lost metrics to this log from now on."""
        self._say = say

    def publish_to(self, publisher: MetricPublisher) -> None:
        """Pass every value to a publisher from now on."""
        self._publisher = publisher

    def read(self, line: str) -> None:
        """Queue a line for the search; values that are no finite number are left out, as CloudWatch does."""
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
                self._matching.send(piece)

    def settle(self) -> None:
        """Return when the values of all lines so far are read and sent, in bounded time; end the process."""
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

    def last(self, name: str) -> float | None:
        """Return the last value of a metric, or None without a value."""
        summary = self._summaries.get(name)
        return None if summary is None else summary.last

    def history(self, name: str) -> tuple[float, ...]:
        """Return the first `MOST_VALUES` values of a metric, in the order they came."""
        return tuple(self._history[name])

    def _found(self, number: int, text: str | None) -> None:
        """Add the value that a definition's regex matched; ``text`` is None if the regex was given up."""
        name = self._definitions[number].name
        if text is None:
            self._say(
                f"[platform] The metric {name} is given up: its regex took over {MATCH_SECONDS:g} seconds of CPU time "
                f"for one line, or {MEAN_SECONDS * 1000:g} ms a line"
            )
        elif (value := finite(text)) is not None:
            found = datetime.now(timezone.utc)
            before = self._summaries.get(name)
            self._summaries[name] = MetricSummary.of(value, found) if before is None else before.added(value, found)
            if self._publisher is not None:
                self._publisher.add(name, value, found)
            if len(self._history[name]) < MOST_VALUES:
                self._history[name].append(value)
            self._changed()
