"""The lines that rank 0 shows of a run: metric lines in the log, and one live line on a terminal.

A metric line is ``step=120 epoch=4/5 loss=0.1234 lr=0.05 samples_per_second=8123``, for people and for SageMaker's
metric definitions: a regular expression such as ``loss=([0-9.eE+-]+)`` finds each value. Lines count epochs from 1,
all else from 0. The live line has progress, speed, loss, and the time left. This file only formats and counts:
`smddp.training.run_report` chooses the metrics and when to report.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from smddp.display_text import duration, speed
from smddp.process.log_format import log_or_print
from smddp.process.terminal_line import TerminalLine, fitting, is_watched

logger = logging.getLogger(__name__)

_OF_THE_LINE = ("trainer", "step", "epoch")

_SPAN_SECONDS = 30.0  # the live line shows the speed over the last half minute


def check_names(metrics: Mapping[str, object]) -> None:
    """Raise ValueError for a metric name that starts every line anyway, or contains a space or ``=``."""
    if taken := [
        name for name in metrics if name in _OF_THE_LINE or any(each.isspace() or each == "=" for each in name)
    ]:
        raise ValueError(
            f"no metric can be called {', '.join(map(repr, taken))}: each line begins with {', '.join(_OF_THE_LINE)}, "
            "and a name has neither spaces nor '='; choose another name"
        )


def shown_epoch(epoch: int, epochs: int | None = None) -> str:
    """Return an epoch, which code counts from 0, for a person, who counts from 1.

    Examples:
        >>> shown_epoch(0, 3), shown_epoch(3, 3), shown_epoch(3)
        ('1/3', '3/3', '4')
    """
    return str(epoch + 1) if epochs is None else f"{min(epoch + 1, epochs)}/{epochs}"


def metrics_line(
    step: int, epoch: int, metrics: Mapping[str, float], *, epochs: int | None = None, trainer: str | None = None
) -> str:
    """Return the metric line; numbers keep four digits, and all digits before the point.

    ``epoch`` counts from 0. ``epochs`` is the number of epochs, if known. The name of the trainer, in a job with
    several, comes first.
    """
    return " ".join(
        [
            *([] if trainer is None else [f"trainer={trainer}"]),
            f"step={step}",
            f"epoch={shown_epoch(epoch, epochs)}",
            *(f"{name}={_digits(value)}" for name, value in metrics.items()),
        ]
    )


def report(
    step: int, epoch: int, metrics: Mapping[str, float], *, epochs: int | None = None, trainer: str | None = None
) -> None:
    """Log or print the line of `metrics_line`; call it on rank 0 only."""
    log_or_print(logger, metrics_line(step, epoch, metrics, epochs=epochs, trainer=trainer))


class StepRate:
    """Optimizer steps a second since the last lap or restart."""

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, step: int) -> None:
        """Count from this step and this moment."""
        self._step, self._time = step, time.monotonic()

    def lap(self, step: int) -> float:
        """Return steps a second since the last lap or restart."""
        earlier_step, earlier_time = self._step, self._time
        self.restart(step)
        return (step - earlier_step) / max(self._time - earlier_time, 1e-9)


def _digits(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e15 else f"{value:.4g}"


@dataclass(kw_only=True, slots=True)
class LiveRun:
    """The values of the live line. The run's thread writes them, the line's thread reads them, without a lock."""

    steps: Callable[[], int]
    """Optimizer steps taken."""
    epoch: Callable[[], int]
    """The epoch under way, from 0."""
    newest_checkpoint: Callable[[], int | None]
    """The step of the newest durable checkpoint of this process."""
    memory: Callable[[], int]
    """Peak memory in bytes."""
    checkpoint_seconds: float | None = None
    """Seconds between checkpoints, if the clock decides."""
    checkpoint_steps: int | None = None
    """Steps between checkpoints, if steps decide."""
    total: int | None = None
    """The step at which the run ends, if known."""
    epochs: int | None = None
    """The number of epochs, if known."""
    samples_a_step: int | None = None
    """Samples per step over all ranks, if known."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest value of each metric. The run replaces the mapping, and never changes it."""


class LiveLine:
    """Format the live line of a run, in a thread; it costs a training step nothing."""

    def __init__(self, run: LiveRun, clock: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()
        self._checkpoint: int | None = None
        self._checkpoint_time = clock()

    def text(self, columns: int) -> str:
        """Return the most important parts that fit into this number of columns."""
        run, now = self._run, self._clock()
        steps = run.steps()
        rate = self._rate(now, steps)
        parts = [
            (2, f"epoch {shown_epoch(run.epoch(), run.epochs)}"),
            (0, f"step {steps}" + ("" if run.total is None else f"/{run.total}")),
        ]
        if "loss" in run.metrics:
            parts.append((1, f"loss {run.metrics['loss']:.4g}"))
        if rate:
            fast = f"{rate:.3g} steps/s" if run.samples_a_step is None else speed(rate * run.samples_a_step)
            parts.append((4, fast))
            if run.total is not None:
                parts.append((3, f"ETA {duration((run.total - steps) / rate)}"))
        parts.append((5, f"{run.memory() / 2**30:.1f} GiB"))
        if checkpoints := self._checkpoints(now, steps, rate):
            parts.append((6, checkpoints))
        shares = [(name[5:], value) for name, value in run.metrics.items() if name.startswith("time_")]
        parts += [(7 + rank, f"{name} {value:.0%}") for rank, (name, value) in enumerate(shares)]
        return fitting(parts, columns)

    def _rate(self, now: float, steps: int) -> float:
        """Return steps a second over the last half minute, or since the start."""
        self._seen.append((now, steps))
        while now - self._seen[0][0] > _SPAN_SECONDS:
            self._seen.popleft()
        began, before = self._seen[0]
        return (steps - before) / (now - began) if now > began else 0.0

    def _checkpoints(self, now: float, steps: int, rate: float) -> str:
        """Return the age of the newest checkpoint, and the time until the next one, if known."""
        run, newest = self._run, self._run.newest_checkpoint()
        if newest != self._checkpoint:
            self._checkpoint, self._checkpoint_time = newest, now
        age = now - self._checkpoint_time
        due = [] if run.checkpoint_seconds is None else [run.checkpoint_seconds - age]
        if run.checkpoint_steps is not None and rate:
            due.append((run.checkpoint_steps - steps % run.checkpoint_steps) / rate)
        following = duration(min(due)) if due else ""
        if newest is None:
            return f"checkpoint in {following}" if following else ""
        return f"checkpoint {duration(age)} ago" + (f", next in {following}" if following else "")


def shown_on_terminal(line: LiveLine) -> TerminalLine | None:
    """Show the line if stderr is a terminal; else return None, because the log's plain lines suffice."""
    if not is_watched(sys.stderr):
        return None
    shown = TerminalLine(line.text, sys.stderr)
    return shown if shown.start() else None
