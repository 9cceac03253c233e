"""Text for a terminal: the parts of a live line, and untrusted text made safe.

Text from a job or its storage must not move the reader's cursor, set a title or fill the clipboard. The stored text, in
a job's description or a manifest, is unchanged; it is cleaned when a message or a line is made from it.
"""

from __future__ import annotations

import os
import re
from typing import TextIO

from smddp.path_text import with_shown_paths

PROGRESS_VARIABLE = "SMDDP_PROGRESS"
"""0 turns live lines off."""

_GAP = "  "
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC and other strings: titles, links, the clipboard
    r"|\x1b[ -/]*[0-Z\\-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
"""Control sequences of ECMA-48; control characters except tab, newline and carriage return; and characters that change
the text's direction."""


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


def as_size(size: int) -> str:
    """Return a number of bytes for people: ``1.25 GB``."""
    value, unit = float(size), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def shown_line(line: str) -> str:
    """Return a log line without control sequences; for a progress bar, its last state."""
    return next(filter(None, reversed(_CONTROL.sub("", line).rstrip("\r\n").split("\r"))), "")


def shown_text(text: str) -> str:
    """Return a message without control sequences; carriage returns become newlines."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def shown_error(message: str) -> str:
    """Return an error's message for a terminal: without control sequences, its paths as log lines show them."""
    return shown_text(with_shown_paths(message))


def shown_name(name: str) -> str:
    r"""Return a name on one line, with unprintable characters escaped as in Python, such as ``\x1b``."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in name)
