"""What was measured at a step, as the numbers that a manifest keeps and a metric line shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsFloat


def as_numbers(metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
    """Return metrics as numbers: an int stays one; all else, such as a tensor of one element, becomes a float.

    Raises:
        ValueError: If one is no number; says which.
    """
    return {str(name): _number(name, value) for name, value in metrics.items()}


def _number(name: str, value: SupportsFloat) -> float:
    try:
        return value if type(value) is int else float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        found = str(value)[:80]
        raise ValueError(f"the metric {name!r} is {found!r}: give a number, or a tensor of one") from error
