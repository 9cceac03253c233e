"""Show a running job to a person: its log and, on a terminal or in a notebook, a live progress line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from estimators.job_handle.events import JobEvent, StatusChange
from estimators.job_handle.notebook_line import NotebookLine, in_notebook
from estimators.log_reader import LogLine
from estimators.log_view import LogView
from smddp.process.live_text import is_watched


def is_live() -> bool:
    """Return whether stdout is a terminal or a notebook, which can show a live line."""
    return is_watched(sys.stdout) or in_notebook()


@contextmanager
def shown(name: str, live: Callable[[], Mapping[str, str]] | None) -> Iterator[Callable[[JobEvent], None]]:
    """Show a job on stdout; yield the function that takes each event. The terminal is restored in any case.

    `live` returns the job's hyperparameters, for the live line; None shows no live line.
    """
    if live is None:
        view = LogView()
        view.show_name(name)
        yield lambda event: _show(view, event)
        return
    from estimators.job_handle.progress import ProgressLine
    from smddp.process.terminal_line import TerminalLine

    progress = ProgressLine(live())
    line = NotebookLine(progress.text) if in_notebook() else TerminalLine(progress.text, sys.stdout)
    try:
        line.start()
        view = LogView()  # created after start(): sys.stdout now writes above the live line
        view.show_name(name)

        def show(event: JobEvent) -> None:
            progress.update(event)
            _show(view, event)

        yield show
    finally:
        line.stop()


def _show(view: LogView, event: JobEvent) -> None:
    if isinstance(event, LogLine):
        view.show_line(event.host, event.message)
    elif isinstance(event, StatusChange):
        view.show_status(event.time, event.status, event.message)
