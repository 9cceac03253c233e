"""A job's log as a person reads it: on a terminal, in a notebook, in a file."""

from __future__ import annotations

import re
import sys
from datetime import datetime

from rich.console import Console
from rich.text import Text

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue")
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC and other strings: titles, links, the clipboard
    r"|\x1b[ -/]*[0-Z\\-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
"""Control sequences of ECMA-48, and control characters but tab, newline and carriage return."""


class LogView:
    """Shows each line with its host, coloured where somebody watches. Stdout is the one at the time it is made."""

    def __init__(self) -> None:
        # A notebook merges what is written to stdout, and knows a terminal's colours; rich's own way of writing there
        # makes an output of each line.
        self._console = Console(
            file=sys.stdout,
            force_jupyter=False,
            force_terminal=Console().is_jupyter or None,
            highlight=False,
            soft_wrap=True,
        )
        self._colours: dict[str, str] = {}

    def show_name(self, name: str) -> None:
        """Show the job's name, by which it can be found again."""
        self._console.print(Text(f"training job {name}", style="bold"))

    def show_line(self, host: str, message: str) -> None:
        """Show one line of a host's log."""
        colour = self._colours.setdefault(host, _COLOURS[len(self._colours) % len(_COLOURS)])
        self._console.print(Text.assemble((f"{host} | ", colour), as_shown(message)))

    def show_status(self, time: datetime, status: str, message: str) -> None:
        """Show that the job's status has changed."""
        text = f"{time.astimezone():%H:%M:%S} {status}"
        if message and message != status:
            text = f"{text}: {as_shown(message)}"
        self._console.print(Text(text, style="bold"))


def as_shown(line: str) -> str:
    """Return what a terminal shows of a line in the end: the last state of a progress bar.

    Control sequences, colours too, are left out: a job's log moves no cursor and sets no title on who reads it.
    """
    return next(filter(None, reversed(_CONTROL.sub("", line).rstrip("\r\n").split("\r"))), "")
