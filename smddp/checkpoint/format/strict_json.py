"""JSON that nobody vouches for: one meaning or an error, where Python's parser is generous."""

from __future__ import annotations

import json
from typing import Any


def loads(data: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: It is not JSON; a key stands in an object twice; a number is NaN or infinite; it is nested too deep.
    """
    try:
        return json.loads(data, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key stands there twice")
    return content


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
