"""The hyperparameters of a run, saved with each checkpoint and compared when the run resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def json_values(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters as JSON reads them back. Raise ValueError if one is not a JSON value."""
    try:
        return dict(json.loads(json.dumps(dict(hyperparameters), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the hyperparameters are not JSON values: {error}; give numbers, texts, None, and lists and dicts of them"
        ) from error


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return name, old value and new value of each changed hyperparameter; nothing if either side is empty."""
    if not old or not new:
        return []  # one side recorded none
    told = [{name: json.dumps(value) for name, value in each.items()} for each in (old, new)]
    names = [*old, *(name for name in new if name not in old)]
    return [
        (name, told[0].get(name, "not given"), told[1].get(name, "not given"))
        for name in names
        if told[0].get(name) != told[1].get(name)
    ]
