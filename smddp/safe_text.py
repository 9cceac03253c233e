"""Untrusted text made safe for a terminal.

Text from a job or its storage must not move the reader's cursor, set a title or fill the clipboard. The stored text, in
a job's description or a manifest, is unchanged; it is cleaned when a message or a line is made from it.
"""

from __future__ import annotations

import re

from smddp.path_text import with_shown_paths

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC and other strings: titles, links, the clipboard
    r"|\x1b[ -/]*[0-Z\\-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
"""Control sequences of ECMA-48; control characters except tab, newline and carriage return; and characters that change
the text's direction."""


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
