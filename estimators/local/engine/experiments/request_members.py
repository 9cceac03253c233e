"""What a request says of an experiment, a trial or a trial component."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from botocore.utils import parse_to_aware_datetime

from estimators.local.engine.errors import invalid
from estimators.local.engine.job_request import read_tags

Handler = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes a request that was checked against the service's model, and returns the answer."""
_NAMES_AND_TAGS = ("ExperimentName", "TrialName", "TrialComponentName", "Tags")


def members_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a request says of an entity beside its name and tags, with times as datetimes.

    Raises:
        ApiError: ValidationException, for a parameter that has no value, or two, or a number that no double holds.
    """
    for name, parameter in request.get("Parameters", {}).items():
        if len(parameter) != 1:
            raise invalid(f"Parameters: {name[:80]} has {len(parameter)} values: give a StringValue or a NumberValue.")
        double(parameter.get("NumberValue", 0), f"Parameters: {name[:80]}")
    return {
        name: parse_to_aware_datetime(value) if name in ("StartTime", "EndTime") else value
        for name, value in request.items()
        if name not in _NAMES_AND_TAGS
    }


def tags_of(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags by their keys.

    Raises:
        ApiError: ValidationException, for a key that comes twice or is AWS's own.
    """
    return read_tags(request.get("Tags", ()))


def double(value: float, place: str) -> float:
    """Return a number of a JSON document, which has no bounds, as a finite double.

    Raises:
        ApiError: ValidationException, if it is none.
    """
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise invalid(f"{place}: the number is larger than a double holds; give a finite one.")
    return number
