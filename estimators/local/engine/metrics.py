"""A job's metrics: the last value of each metric definition, read from the lines that the job prints.

The matching itself is done by another process, so that no regex can hold this one up: see ``matcher.py``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

MAX_LINE = 1000
"""Characters of a line that are searched."""
MATCH_SECONDS = 0.5
"""CPU time that one match may take; a metric whose regex needs more is given up."""
_MATCHER = str(Path(__file__).with_name("matcher.py"))


@dataclass(kw_only=True, slots=True, frozen=True)
class MetricDefinition:
    """A metric's name, and the regex whose first group is its value."""

    name: str
    regex: re.Pattern[str]

    @classmethod
    def parse(cls, name: str, regex: str) -> MetricDefinition:
        """Compile the regex.

        Raises:
            ValueError: If it can't be compiled, or has no group to take the value from.
        """
        try:
            compiled = re.compile(regex)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"the regex {regex!r} of the metric {name} can't be compiled: {error}") from None
        if not compiled.groups:
            raise ValueError(
                f"the regex {regex!r} of the metric {name} has no group to take the value from; write "
                f"({regex}) or put parentheses around the number"
            )
        return cls(name=name, regex=compiled)


class Metrics:
    """Takes in lines of all hosts, from any thread; the last value of each metric stays."""

    def __init__(self, definitions: Iterable[MetricDefinition]) -> None:
        self._definitions = tuple(definitions)
        self._last: dict[str, tuple[float, datetime]] = {}
        self._lock = threading.Lock()
        self._matcher: _Matcher | None = None

    def read(self, line: str) -> None:
        """Take the values of one line, soon; those that are no finite number are left out, as CloudWatch does."""
        if not self._definitions:
            return
        with self._lock:
            if self._matcher is None:
                self._matcher = _Matcher(self)
            self._matcher.send(line[:MAX_LINE])

    def settle(self) -> None:
        """Return when the values of all lines so far are taken, and keep no process for more."""
        with self._lock:
            matcher, self._matcher = self._matcher, None
        if matcher is not None:
            matcher.finish()

    def describe(self) -> list[dict[str, Any]]:
        """FinalMetricDataList, in the order of the definitions."""
        return [
            {"MetricName": definition.name, "Value": value, "Timestamp": time}
            for definition in self._definitions
            for value, time in [self._last.get(definition.name, (None, None))]
            if value is not None
        ]

    @property
    def regexes(self) -> list[str]:
        """Those of the definitions, in their order."""
        return [definition.regex.pattern for definition in self._definitions]

    def found(self, number: int, text: str | None) -> None:
        """Take what the first group of a definition's regex has matched; None if the regex was given up."""
        name = self._definitions[number].name
        if text is None:
            logger.warning("the metric %s is given up: its regex took over %s s of CPU time", name, MATCH_SECONDS)
        elif (value := _number(text)) is not None:
            self._last[name] = (value, datetime.now(timezone.utc))


class _Matcher:
    """The process that matches, and the thread that takes its answers."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _MATCHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
            cwd="/",
        )
        self._answers = threading.Thread(target=self._take_answers, name="metrics", daemon=True)
        self._answers.start()
        self.send([metrics.regexes, MATCH_SECONDS])

    def send(self, message: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{json.dumps(message)}\n")
        except BrokenPipeError:
            logger.warning("a line was not searched for metrics: the process that does it has ended")

    def finish(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._answers.join()
        self._process.wait()

    def _take_answers(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                self._metrics.found(*json.loads(line))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
