"""A metric definition of a job: the regex that finds a metric's values in the lines of its log.

The local engine and the job's handle use the same code, so both find the values that AWS would show. smddp's own lines,
such as ``step=120 epoch=4/5 loss=0.1234``, need no configuration: the names of the Trainer's metrics are known, and a
script's are the keyword names in calls such as ``trainer.log(accuracy=...)``. Names that the script computes at
runtime are not found.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_LINE = 1000
"""Characters searched in a line, or in each state of a progress bar."""
_NUMBER = r"(-?[0-9.]+(?:e[-+]?[0-9]+)?)"

OF_WHOLE_RUNS = ("goodput", "slow_rank", "slow_share")
"""Metrics of a whole run on its own hosts: a rehearsal can't measure them."""
_OF_EVERY_TRAINER = ("loss", "lr", "samples_per_second", "step", "epoch", "grad_norm", *OF_WHOLE_RUNS)
_OF_TIMING = (
    *("time_data", "time_forward", "time_backward", "time_optimizer", "time_checkpoint", "time_other"),
    *("peak_memory_gib", "tflops", "mfu"),
)


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
    """Return a text's number, or None if it is not a finite number: CloudWatch ignores those."""
    if text is None or "_" in text:  # only Python accepts 1_000 as a number
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def regex_of_line(name: str) -> str:
    """Return the regex for a metric's value in smddp's lines: ``step=120 epoch=4/5 loss=0.1234``."""
    return rf"(?:^|\s){name}={_NUMBER}"


def completed(given: Any, script: ast.Module, *, most: int) -> Any:
    """Return a job's ``metric_definitions``, here `given`, with those of smddp's metric lines after them.

    A name that the user defines stays the user's. Of more than `most`, smddp's are dropped. An empty list, which turns
    smddp's off, and an invalid value are returned as they are.
    """
    is_valid = isinstance(given, (list, tuple)) and given and all(isinstance(each, Mapping) for each in given)
    if given is not None and not is_valid:
        return given
    own = list(given or ())
    defined = [each.get("Name") for each in own]
    added = [each for each in definitions(script, most=most) if each["Name"] not in defined]
    return [*own, *added[: max(0, most - len(own))]]


def definitions(script: ast.Module, *, most: int) -> list[dict[str, str]]:
    """Return at most `most` metric definitions for a script that uses smddp, given as its syntax tree.

    If there are too many, the Trainer's timing metrics are dropped first, then the script's own.
    """
    calls = [node for node in ast.walk(script) if isinstance(node, ast.Call)]
    own = dict.fromkeys(name for call in calls for name in _logged(call))
    timed = any(keyword.arg == "timing" for call in calls for keyword in call.keywords)
    names = list(dict.fromkeys([*_OF_EVERY_TRAINER, *own, *(_OF_TIMING if timed else ())]))
    return [{"Name": name, "Regex": regex_of_line(name)} for name in names[:most]]


def _logged(call: ast.Call) -> Iterator[str]:
    """Yield the keyword names of a ``….log(name=...)`` call."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "log":
        yield from (keyword.arg for keyword in call.keywords if keyword.arg and keyword.arg != "reduce")
