"""What a run was started with, kept with its checkpoints: to see what changed when it goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def json_values(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return them as they will be read again."""
    try:
        return dict(json.loads(json.dumps(dict(hyperparameters), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the hyperparameters are not JSON values: {error}; give numbers, texts, None, and lists and dicts of them"
        ) from error


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return what is not the same in both: name, old value, new value."""
    if not old or not new:
        return []  # somebody did not say
    told = [{name: json.dumps(value) for name, value in each.items()} for each in (old, new)]
    names = [*old, *(name for name in new if name not in old)]
    return [
        (name, told[0].get(name, "not given"), told[1].get(name, "not given"))
        for name in names
        if told[0].get(name) != told[1].get(name)
    ]
