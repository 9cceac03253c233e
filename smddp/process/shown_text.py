r"""Text that a job, or whoever wrote to its storage, has made, as a terminal may show it.

A job moves no cursor, sets no title and fills no clipboard on who reads it. The text itself, in a job's description or
a manifest, stays as it is: it is made safe where a message or a line is made of it.
"""

from __future__ import annotations

import re

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC and other strings: titles, links, the clipboard
    r"|\x1b[ -/]*[0-Z\\-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
"""Control sequences of ECMA-48, and control characters but tab, newline and carriage return; and those that turn the
direction of what follows, so that it reads otherwise than it is."""


def shown_line(line: str) -> str:
    """Return a line of a log without control sequences: of a progress bar, its last state."""
    return next(filter(None, reversed(_CONTROL.sub("", line).rstrip("\r\n").split("\r"))), "")


def shown_text(text: str) -> str:
    """Return a message without control sequences; its lines stay, and none covers another."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def shown_name(name: str) -> str:
    r"""Return a name on one line, with what is not printable as Python writes it, such as ``\x1b``."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in name)
