"""A metric definition of a job: the regex that finds a metric's values in the lines of its log.

The local engine and the job's handle use the same code, so both find the values that AWS would show.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MAX_LINE = 1000
"""Characters searched in a line, or in each state of a progress bar."""
_NUMBER = r"(-?[0-9.]+(?:e[-+]?[0-9]+)?)"


@dataclass(kw_only=True, slots=True, frozen=True)
class MetricDefinition:
    """A metric's name, and the regex whose first group is its value."""

    name: str
    regex: re.Pattern[str]

    @classmethod
    def parse(cls, name: str, regex: str) -> MetricDefinition:
        """Compile the regex; raise ValueError if it does not compile, or has no group for the value."""
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

    def value(self, piece: str) -> float | None:
        """Return the metric's value in a piece of a line, or None if absent."""
        found = self.regex.search(piece)
        return finite(found[1]) if found else None


def pieces(line: str) -> list[str]:
    """Split a line into the pieces to search: a progress bar overwrites its states with carriage returns."""
    return [piece[:MAX_LINE] for piece in line.split("\r") if piece]


def finite(text: str | None) -> float | None:
    """Return a text's number, or None if it is no finite number: CloudWatch ignores those."""
    if text is None or "_" in text:  # only Python accepts 1_000 as a number
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def regex_of_line(name: str) -> str:
    """Return the regex for a metric's value in smddp's lines: ``step=120 epoch=3 loss=0.1234``."""
    return rf"(?:^|\s){name}={_NUMBER}"
