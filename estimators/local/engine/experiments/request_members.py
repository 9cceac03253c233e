"""Reads the members of a request about an experiment, a trial or a trial component."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from botocore.utils import parse_to_aware_datetime

from estimators.local.engine.errors import invalid
from estimators.local.engine.records import read_tags

_NAMES_AND_TAGS = ("ExperimentName", "TrialName", "TrialComponentName", "Tags")


def members_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a request besides names and tags, with times as datetimes.

    Raise ApiError for a parameter without exactly one value, or with a number too large for a double.
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
    """Return the tags by key; raise ApiError for a duplicate key, or a key reserved by AWS."""
    return read_tags(request.get("Tags", ()))


def double(value: float, place: str) -> float:
    """Return a JSON number, which has no bounds, as a finite double; raise ApiError if it is too large."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise invalid(f"{place}: the number is larger than a double holds; give a finite one.")
    return number
