"""A parser for untrusted JSON, which rejects ambiguities that Python's parser accepts."""

from __future__ import annotations

import json
from typing import Any


def loads(data: bytes) -> Any:
    """Parse JSON; raise ValueError if malformed, nested too deep, or with a duplicate key, NaN or infinity."""
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
