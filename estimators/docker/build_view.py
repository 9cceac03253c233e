"""A build as it is watched: a person sees the step, its time and its last line; a log gets a line a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from estimators.docker.build_log import BuildLog, Step

_WIDTH_IN_LOGS = 110


@contextmanager
def shown(console: Console) -> Iterator[Callable[[BuildLog], None]]:
    """Show a build while the block lasts; call what it gives with the build's log."""
    if console.is_terminal:
        display = _Display()
        with Live(display, console=console, transient=True, refresh_per_second=8):
            yield display.watch
    else:
        yield _Lines(console).watch


def clock(seconds: float) -> str:
    """Seconds as ``1:23``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class _Display:
    """Two lines that renew themselves: the clock goes on where nothing is written."""

    def __init__(self) -> None:
        self._log = BuildLog()
        self._spinner = Spinner("dots")

    def watch(self, log: BuildLog) -> None:
        self._log = log

    def __rich__(self) -> RenderableType:
        step = self._log.step or Step(place="", does="sending the build context")
        last = self._log.tail[-1].strip() if self._log.tail else ""
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(no_wrap=True)
        line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        line.add_column(no_wrap=True, justify="right")
        line.add_row(self._spinner, Text(str(step)), clock(time.monotonic() - step.began))
        return Group(line, Text(f"  {last}", style="dim", no_wrap=True, overflow="ellipsis"))


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._step: Step | None = None

    def watch(self, log: BuildLog) -> None:
        if log.step is None or log.step == self._step:
            return
        self._step = log.step
        if log.step.takes_time:
            line = Text(str(log.step))
            line.truncate(_WIDTH_IN_LOGS, overflow="ellipsis")
            self._console.print(line, soft_wrap=True)
