"""Show a running job to a person: its log and, on a terminal or in a notebook, a live progress line."""

from __future__ import annotations

import contextvars
import html
import json
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.text import Text

from estimators.job_handle.events import LAST_STATUSES, JobEvent, MetricValue, StatusChange
from estimators.log_reader import LogLine
from smddp.display_text import duration, shown_line, shown_text, speed
from smddp.process.heartbeat import HEARTBEAT_SECONDS, Heartbeat
from smddp.process.terminal_line import PROGRESS_VARIABLE, TerminalLine, fitting, is_watched

logger = logging.getLogger(__name__)

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue")

_RUNNING = "Training"
"""The status in which the job's own log tells how it goes."""

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_COLUMNS = 16
_MOST_LOSSES = 4096
_SPAN_SECONDS = 120.0
"""Window of the job's own time over which the rate is measured."""
_EPOCHS = ("epochs", "num_epochs", "num_train_epochs", "max_epochs")
_STEPS = ("max_steps", "total_steps", "steps")
"""Common names of the hyperparameters that set the end of the training."""
_REFRESH_SECONDS = 1.0  # each is a message to the browser
_COLUMNS = 100


def is_live() -> bool:
    """Return whether stdout is a terminal or a notebook, which can show a live line."""
    return is_watched(sys.stdout) or _in_notebook()


@contextmanager
def shown(name: str, live: Callable[[], Mapping[str, str]] | None) -> Iterator[Callable[[JobEvent], None]]:
    """Show a job on stdout; yield the function that takes each event. The terminal is restored in any case.

    `live` returns the job's hyperparameters, for the live line; None shows no live line.
    """
    if live is None:
        view = LogView()
        view.show_name(name)
        with closing(WaitLines(view)) as wait_lines:

            def show_with_wait(event: JobEvent) -> None:
                _show(view, event)
                wait_lines.update(event)

            yield show_with_wait
        return

    progress = ProgressLine(live())
    line = _NotebookLine(progress.text) if _in_notebook() else TerminalLine(progress.text, sys.stdout)
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


class WaitLines:
    """Shows a line every ten seconds while the job is in a status in which its program does not run.

    Such a status has no log: Pending, Starting (a spot job waits for capacity), Downloading, Uploading.
    """

    def __init__(self, view: LogView, *, every: float = HEARTBEAT_SECONDS) -> None:
        self._heartbeat = Heartbeat("", say=view.show_note, every=every)

    def update(self, event: JobEvent) -> None:
        """Take in an event."""
        if isinstance(event, StatusChange):
            if event.status == _RUNNING or event.status in LAST_STATUSES:
                self._heartbeat.stop()
            else:
                self._heartbeat.start(event.status)

    def close(self) -> None:
        """Show no more lines."""
        self._heartbeat.stop()


def _show(view: LogView, event: JobEvent) -> None:
    if isinstance(event, LogLine):
        view.show_line(event.host, event.message)
    elif isinstance(event, StatusChange):
        view.show_status(event.time, event.status, event.message)


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
        text = status
        if message and message != status:
            text = f"{text}: {shown_text(message)}"
        self._show_note(time, text)

    def show_note(self, text: str) -> None:
        """Show a line about the job, with the present time."""
        self._show_note(datetime.now(timezone.utc), text)

    def _show_note(self, time: datetime, text: str) -> None:
        self._console.print(Text(f"{time.astimezone():%H:%M:%S} {text}", style="bold"))


class ProgressLine:
    """Receives a job's events and returns its progress.

    One thread updates it while another reads it, without a lock: a read between two changes may fail, which the live
    line catches until its next refresh.
    """

    def __init__(self, hyperparameters: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        """Start before the job's first change of status; `hyperparameters` may give the number of epochs or steps.

        `clock` returns seconds since 1970.
        """
        self._clock = clock
        self._epochs = _first_number(hyperparameters, _EPOCHS)
        self._steps = _first_number(hyperparameters, _STEPS)
        self._status, self._since = "", clock()
        self._epoch: float | None = None
        self._step: float | None = None
        self._epoch_began: float | None = None  # the first logged step of the epoch
        self._steps_an_epoch: float | None = None
        self._newest: dict[str, float] = {}
        self._losses: deque[float] = deque(maxlen=_MOST_LOSSES)
        self._laps: deque[tuple[float, float]] = deque()

    def update(self, event: JobEvent) -> None:
        """Take in an event."""
        if isinstance(event, StatusChange):
            self._status, self._since = event.status, event.time.timestamp()
            self._laps.clear()  # an interruption must not count as the time of a step
        elif isinstance(event, MetricValue):
            self._newest[event.metric] = event.value
            if event.metric == "loss":
                self._losses.append(event.value)
            self._move(event)

    def _move(self, event: MetricValue) -> None:
        if event.step is not None and event.step != self._step:
            seconds = event.time.timestamp()
            if self._step is not None and event.step < self._step:  # resumed from before the last logged step
                self._laps.clear()
            self._laps.append((seconds, event.step))
            while seconds - self._laps[0][0] > _SPAN_SECONDS and len(self._laps) > 2:
                self._laps.popleft()
            self._step = event.step
        if event.epoch is not None and event.epoch != self._epoch:
            if self._epoch is not None and event.step and self._epoch_began is not None and event.epoch > self._epoch:
                self._steps_an_epoch = (event.step - self._epoch_began) / (event.epoch - self._epoch)
            self._epoch, self._epoch_began = event.epoch, event.step

    def text(self, columns: int) -> str:
        """Return the line, with the most important parts that fit."""
        parts = [(0, f"{self._status or 'waiting'} {duration(self._clock() - self._since)}")]
        if self._epoch is not None:
            parts.append((2, f"epoch {self._epoch:g}" + ("" if self._epochs is None else f"/{self._epochs:g}")))
        if self._step is not None:
            parts.append((1, f"step {self._step:g}" + ("" if self._steps is None else f"/{self._steps:g}")))
        if self._losses:
            parts.append((3, f"loss {self._losses[-1]:.4g}"))
            parts.append((5, sparkline(list(self._losses), _SPARK_COLUMNS)))
        if "samples_per_second" in self._newest:
            parts.append((6, speed(self._newest["samples_per_second"])))
        if (left := self._seconds_left()) is not None:
            parts.append((4, f"ETA {duration(left)}"))
        return fitting(parts, columns)

    def _seconds_left(self) -> float | None:
        total = self._steps
        if total is None and self._epochs is not None and self._steps_an_epoch is not None:
            total = self._epochs * self._steps_an_epoch
        if total is None or len(self._laps) < 2:
            return None
        (began, before), (now, step) = self._laps[0], self._laps[-1]
        if step <= before or now <= began:
            return None
        left = (total - step) * (now - began) / (step - before) - max(0.0, self._clock() - now)
        return max(0.0, left) if math.isfinite(left) else None  # a log may contain any number


def sparkline(values: list[float], columns: int) -> str:
    """Return the course of some values in at most `columns` characters, each the mean of one section."""
    count = min(columns, len(values))
    edges = [round(number * len(values) / count) for number in range(count + 1)]
    largest = max(map(abs, values)) or 1.0  # otherwise the sum of very large floats would overflow
    means = [sum(value / largest for value in values[a:b]) / (b - a) for a, b in pairwise(edges)]
    least, most = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (most - least) if most > least else 0.0
    return "".join(_BLOCKS[round((mean - least) * scale)] for mean in means)


def _first_number(hyperparameters: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    for name in names:
        with suppress(KeyError, ValueError, OverflowError, RecursionError):
            value = json.loads(hyperparameters[name])
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
                return float(value)
    return None


class _NotebookLine:
    """One live line, like `smddp.process.terminal_line.TerminalLine` on a terminal. Its last text stays.

    `text` returns the line for a number of columns; it is called in another thread.
    """

    def __init__(self, text: Callable[[int], str]) -> None:
        self._text = text
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Display the live line below the notebook cell's present output, and start the thread that refreshes it."""
        from IPython.display import display

        show: Callable[..., Any] = display
        handle = show(self._bundle(), raw=True, display_id=True)

        def refresh() -> None:
            while not self._ended.wait(_REFRESH_SECONDS):
                handle.update(self._bundle(), raw=True)
            handle.update(self._bundle(), raw=True)

        # The kernel assigns a message to its cell by the context.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(refresh,), name="live line", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and leave the final text on display."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _bundle(self) -> dict[str, str]:
        try:
            text = self._text(_COLUMNS)
        except Exception:
            logger.debug("the live line can't be made", exc_info=True)
            text = ""  # must not end the wait for the job
        return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}


def _in_notebook() -> bool:
    """Return whether this is a notebook's kernel, and live lines are not turned off."""
    return Console().is_jupyter and os.environ.get(PROGRESS_VARIABLE) != "0"
