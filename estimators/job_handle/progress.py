"""A job's progress on one line: status, epoch and step, the loss and its curve, the speed, and the time left."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise

from estimators.job_handle.events import JobEvent, MetricValue, StatusChange
from smddp.process.live_text import duration, fitting, speed

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_COLUMNS = 16
_MOST_LOSSES = 4096
_SPAN_SECONDS = 120.0
"""Window of the job's own time over which the rate is measured."""
_EPOCHS = ("epochs", "num_epochs", "num_train_epochs", "max_epochs")
_STEPS = ("max_steps", "total_steps", "steps")
"""Common names of the hyperparameters that set the end of the training."""


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
            self._epoch = event.epoch
            if event.step and event.epoch >= 1:
                self._steps_an_epoch = event.step / event.epoch

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
