"""Durations in words."""

from __future__ import annotations

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def in_words(seconds: int) -> str:
    """Return seconds as ``1 d 2 h`` or ``1 min 30 s``, without units that are 0."""
    parts = []
    for size, unit in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"
