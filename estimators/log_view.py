"""Show a job's log to a person: on a terminal, in a notebook, in a file."""

from __future__ import annotations

import sys
from datetime import datetime

from rich.console import Console
from rich.text import Text

from smddp.process.shown_text import shown_line, shown_text

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue")


class LogView:
    """Shows each line with its host, coloured on a terminal and in a notebook; keeps the sys.stdout of its creation."""

    def __init__(self) -> None:
        # A notebook merges writes to stdout and shows terminal colours. rich's own notebook mode would make each line a
        # separate output.
        self._console = Console(
            file=sys.stdout,
            force_jupyter=False,
            force_terminal=Console().is_jupyter or None,
            highlight=False,
            soft_wrap=True,
        )
        self._colours: dict[str, str] = {}

    def show_name(self, name: str) -> None:
        """Show the job's name, with which `TrainingJob.attach` finds the job again."""
        self._console.print(Text(f"training job {shown_line(name)}", style="bold"))

    def show_line(self, host: str, message: str) -> None:
        """Show one line of a host's log."""
        colour = self._colours.setdefault(host, _COLOURS[len(self._colours) % len(_COLOURS)])
        self._console.print(Text.assemble((f"{shown_line(host)} | ", colour), shown_line(message)))

    def show_status(self, time: datetime, status: str, message: str) -> None:
        """Show that the job's status has changed."""
        text = f"{time.astimezone():%H:%M:%S} {status}"
        if message and message != status:
            text = f"{text}: {shown_text(message)}"
        self._console.print(Text(text, style="bold"))
