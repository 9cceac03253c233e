"""A job's metrics: the values of each metric definition, read from the lines that the job prints.

The matching itself is done by another process, so that no regex can hold this one up: see ``matching.py``.
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
"""Values of a metric that are kept, beside the last one."""


class Metrics:
    """Takes in lines of all hosts, from any thread; the last value of each metric stays, and the statistics of all.

    Args:
        definitions: What to look for.
        changed: Is called after each value, by a thread of this object's own.
    """

    def __init__(self, definitions: Iterable[MetricDefinition], changed: Callable[[], None] = lambda: None) -> None:
        self._definitions = tuple(definitions)
        self._changed = changed
        self._summaries: dict[str, MetricSummary] = {}
        self._history: dict[str, list[float]] = {definition.name: [] for definition in self._definitions}
        # Held from the look at `_matching` to its use: `settle` must end no process that `read` is about to send to.
        self._lock = threading.Lock()
        self._matching: Matching | None = None
        self._broken = False
        self._say: Callable[[str], None] = logger.warning
        self._publisher: MetricPublisher | None = None

    def report_to(self, say: Callable[[str], None]) -> None:
        """Write into this log, from now on, which metrics are given up."""
        self._say = say

    def publish_to(self, publisher: MetricPublisher) -> None:
        """Hand every value on, from now on."""
        self._publisher = publisher

    def read(self, line: str) -> None:
        """Take the values of a line, soon; those that are no finite number are left out, as CloudWatch does."""
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
        """Return when the values of all lines so far are taken, in bounded time, and keep no process for more."""
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
        """Return what is known of each metric that has a value, in the order of the definitions."""
        found = ((definition.name, self._summaries.get(definition.name)) for definition in self._definitions)
        return {name: summary for name, summary in found if summary is not None}

    def to_json(self) -> dict[str, Any]:
        """Return what there is to keep of the values until now."""
        return {name: summary.to_json() for name, summary in self.summaries().items()}

    def restore(self, document: Mapping[str, Any] | list[Mapping[str, Any]]) -> None:
        """Take what `to_json` has returned, with each time as text, for what was read until now.

        A platform that knew no statistics wrote a list, of the last values alone; no trial component shows those jobs.
        """
        if isinstance(document, list):
            for each in document:
                time = datetime.fromisoformat(each["Timestamp"])
                self._summaries[each["MetricName"]] = MetricSummary.of(each["Value"], time)
        else:
            self._summaries.update({name: MetricSummary.from_json(each) for name, each in document.items()})

    def last(self, name: str) -> float | None:
        """Return the last value of a metric; None if there is none."""
        summary = self._summaries.get(name)
        return None if summary is None else summary.last

    def history(self, name: str) -> tuple[float, ...]:
        """Return the first `MOST_VALUES` values of a metric, in the order in which they came."""
        return tuple(self._history[name])

    def _found(self, number: int, text: str | None) -> None:
        """Take what the first group of a definition's regex has matched; None if the regex was given up."""
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
