"""A job's metrics: the last value of each metric definition, read from the lines that the job prints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

MAX_LINE = 1000
"""Characters of a line that are searched, so that a regex that backtracks does not meet a megabyte of text. It is no
protection from one whose time grows exponentially: whoever submits a job may run anything here anyway."""


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

    def read(self, line: str) -> None:
        """Take the values of one line; those that are no finite number are left out, as CloudWatch does."""
        for definition in self._definitions:
            found = definition.regex.search(line, 0, MAX_LINE)
            value = _number(found[1]) if found else None
            if value is not None:
                self._last[definition.name] = (value, datetime.now(timezone.utc))

    def describe(self) -> list[dict[str, Any]]:
        """FinalMetricDataList, in the order of the definitions."""
        return [
            {"MetricName": definition.name, "Value": value, "Timestamp": time}
            for definition in self._definitions
            for value, time in [self._last.get(definition.name, (None, None))]
            if value is not None
        ]


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
