"""A metric definition of a job: the regex that finds a metric's values in the lines of its log.

The local engine and the handle of a job read lines by it, so that both see the values that AWS would show.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MAX_LINE = 1000
"""Characters of a line, or of a state of a progress bar, that are searched."""
_NUMBER = r"(-?[0-9.]+(?:e[-+]?[0-9]+)?)"


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

    def value(self, piece: str) -> float | None:
        """Return the metric's value in a piece of a line; None if it has none."""
        found = self.regex.search(piece)
        return finite(found[1]) if found else None


def pieces(line: str) -> list[str]:
    """Return what is searched of a line, each by itself: a progress bar writes its states over one another."""
    return [piece[:MAX_LINE] for piece in line.split("\r") if piece]


def finite(text: str | None) -> float | None:
    """Return the number that a text says; None if it says no finite one, which CloudWatch leaves out."""
    if text is None or "_" in text:  # 1_000 is a number to Python alone
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def regex_of_line(name: str) -> str:
    """Return what finds a metric's value in smddp's lines: ``step=120 epoch=3 loss=0.1234``."""
    return rf"(?:^|\s){name}={_NUMBER}"
