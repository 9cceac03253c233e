"""Seconds as people say them."""

from __future__ import annotations

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def in_words(seconds: int) -> str:
    """Return ``1 d 2 h``, ``90 s`` as ``1 min 30 s``; no unit that is 0 is said."""
    parts = []
    for size, unit in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"
