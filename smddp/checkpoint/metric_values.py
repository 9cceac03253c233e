"""The metrics of a step, as numbers for the manifest and for the metric lines in the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsFloat


def as_numbers(metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
    """Return each metric as a number: an int stays an int, and anything else becomes a float.

    Raise ValueError with the metric's name if its value is not a number.
    """
    return {str(name): _number(name, value) for name, value in metrics.items()}


def _number(name: str, value: SupportsFloat) -> float:
    try:
        return value if type(value) is int else float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        found = str(value)[:80]
        raise ValueError(f"the metric {name!r} is {found!r}: give a number, or a tensor of one") from error
