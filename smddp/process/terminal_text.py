"""The parts of a live line, and of sentences: what fits a terminal, speeds, durations, counts, sizes and ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

PROGRESS_VARIABLE = "SMDDP_PROGRESS"
"""0 turns live lines off."""

_GAP = "  "
_SHOWN_RANKS = 3
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def is_watched(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that can show a live line, and live lines are not turned off."""
    on_terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    return on_terminal and os.environ.get(PROGRESS_VARIABLE) != "0"


def fitting(parts: list[tuple[int, str]], columns: int) -> str:
    """Join the parts in order, without the least important ones (the highest numbers) that do not fit."""
    kept: set[int] = set()
    used = 0
    for index in sorted(range(len(parts)), key=lambda index: parts[index][0]):
        used += len(parts[index][1]) + (len(_GAP) if kept else 0)
        if used > columns:
            break
        kept.add(index)
    return _GAP.join(text for index, (_, text) in enumerate(parts) if index in kept)[:columns]


def speed(samples_a_second: float) -> str:
    """Return a speed such as ``8123 samples/s``."""
    return f"{samples_a_second:.0f} samples/s" if samples_a_second >= 10 else f"{samples_a_second:.2g} samples/s"


def duration(seconds: float) -> str:
    """Return a duration such as ``12 s``, ``3:07 min``, ``2:15 h``."""
    whole = int(max(seconds, 0.0))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02} min" if whole < 3600 else f"{whole // 3600}:{whole // 60 % 60:02} h"


def counted(number: int, one: str, several: str | None = None) -> str:
    """Return ``1 step``, ``2 steps``; `several` is the plural of a noun that takes no ``s``."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def describe(value: object) -> str:
    """Return a short name of a value for an error message; a model's own text may have a thousand lines."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if value is None or isinstance(value, str | int | float) else f"a {type(value).__name__}"


def shown_ranks(hosts: Mapping[int, str]) -> str:
    """Return ranks, with the host of each, as a sentence names them.

    Examples:
        >>> shown_ranks({1: "algo-2"})
        'rank 1 on algo-2'
        >>> shown_ranks(dict.fromkeys([0, 2, 4, 6, 8], "algo-1"))
        'ranks 0, 2, 4 and 2 more'
    """
    if len(hosts) == 1:
        ((rank, host),) = hosts.items()
        return f"rank {rank} on {host}"
    shown = ", ".join(map(str, list(hosts)[:_SHOWN_RANKS]))
    return f"ranks {shown}" + (f" and {len(hosts) - _SHOWN_RANKS} more" if len(hosts) > _SHOWN_RANKS else "")


def as_size(size: int) -> str:
    """Return a number of bytes for people: ``1.25 GB``."""
    value, unit = float(size), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"
