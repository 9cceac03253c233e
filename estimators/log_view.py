"""A job's log for a person: each line with its host, coloured where a terminal shows it, plain where it does not."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue")


class LogView:
    """Writes to stdout as it is when the view is made."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._colours: dict[str, str] = {}

    def show_line(self, host: str, message: str) -> None:
        """Show one line of a host's log."""
        colour = self._colours.setdefault(host, _COLOURS[len(self._colours) % len(_COLOURS)])
        self._console.out(f"{host} | ", style=colour, end="")
        self._console.out(message.rstrip("\n"), highlight=False)

    def show_status(self, time: datetime, status: str, message: str) -> None:
        """Show that the job's status has changed."""
        text = f"{time.astimezone():%H:%M:%S} {status}"
        if message and message != status:
            text = f"{text}: {message}"
        self._console.out(text, style="bold", highlight=False)
