"""Line charts and the history of a job, as numbers that a template draws as SVG, without scripts or libraries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from estimators.console.job_watch import MetricPoint
from smddp.display_text import duration, shown_line
from smddp.secret_text import masked_text

WIDTH, HEIGHT = 360.0, 170.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 16.0, 10.0, 22.0
_COLUMNS = 300
"""Columns to which points are thinned out; each keeps its minimum and maximum, so that no peak is lost."""
_LEAST_RANGE, _MOST, _LARGEST_POWER = 1e-300, 8e307, 308.25
_NARROW = 1.5
_TICKS = 4
"""Most intervals between the ticks of an axis."""


_KINDS: Mapping[str, str] = {
    "Training": "training",
    "Interrupted": "lost",
    "Restarting": "lost",
    "Downloading": "copying",
    "DownloadingTrainingImage": "copying",
    "Uploading": "copying",
    "Stopping": "ending",
    "Completed": "done",
    "Failed": "failed",
    "Stopped": "failed",
    "MaxRuntimeExceeded": "failed",
    "MaxWaitTimeExceeded": "failed",
}
"""The kind of each status. All others count as ``waiting``."""
_LEAST_SHARE = 0.004
"""Least share of the whole bar, so that even a short status is visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The values of one job."""

    job: str
    attempts: Sequence[Sequence[MetricPoint]]
    """The points of each attempt; no line crosses an interruption."""
    began: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart, or a dot for a single value."""

    number: int
    """The job's number, from 0, which decides the colour."""
    job: str
    points: Sequence[tuple[float, float]]

    @property
    def text(self) -> str:
        """The points in SVG's format."""
        return " ".join(f"{x:.2f},{y:.2f}" for x, y in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart in the coordinates of an SVG of `WIDTH` by `HEIGHT`."""

    metric: str
    over: str
    """``step``, or ``time`` if any value has no step."""
    lines: Sequence[Line]
    marks: Sequence[tuple[float, str]]
    """The x of each resume, and the attempt's label."""
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    is_logarithmic: bool


def chart(metric: str, series: Sequence[Series], *, logarithmic: bool = False) -> Chart:
    """Draw one metric of some jobs, each with at least one value; logarithmic only if all values are above 0."""
    points = [point for one in series for attempt in one.attempts for point in attempt]
    by_step = all(point.step is not None for point in points)
    logarithmic = logarithmic and all(point.value > 0 for point in points)

    def position(one: Series, point: MetricPoint) -> tuple[float, float]:
        x = point.step if by_step and point.step is not None else (point.time - one.began).total_seconds()
        return x, math.log10(point.value) if logarithmic else point.value

    raw = [[[position(one, point) for point in attempt] for attempt in one.attempts] for one in series]
    x_range = _range([x for one in raw for attempt in one for x, _ in attempt])
    y_range = _range([y for one in raw for attempt in one for _, y in attempt], margin=0.04)
    to_x = _scale(x_range, LEFT, WIDTH - RIGHT)
    to_y = _scale(y_range, HEIGHT - BOTTOM, TOP)
    lines, marks = [], []
    for number, (one, attempts) in enumerate(zip(series, raw, strict=True)):
        for count, attempt in enumerate(attempts, start=1):
            if not attempt:
                continue
            drawn = [(to_x(x), to_y(y)) for x, y in attempt]
            lines.append(Line(number=number, job=one.job, points=_thinned(drawn)))
            if count > 1:
                marks.append((drawn[0][0], f"attempt {count}" if len(series) == 1 else ""))
    return Chart(
        metric=metric,
        over="step" if by_step else "time",
        lines=lines,
        marks=marks,
        x_ticks=[(to_x(x), _number(x) if by_step else duration(x)) for x in _ticks(x_range)],
        y_ticks=[
            (to_y(y), _number(10**y if logarithmic else y))
            for y in (_ticks_of_powers(y_range) if logarithmic else _ticks(y_range))
        ],
        x_range=x_range,
        y_range=y_range,
        is_logarithmic=logarithmic,
    )


def _range(values: Sequence[float], margin: float = 0.0) -> tuple[float, float]:
    least, most = min(values), max(values)
    room = (most - least) * margin if most - least > _LEAST_RANGE else abs(most) * 0.5 or 1.0
    low, high = least - room, most + room
    return (low, high) if math.isfinite(high - low) else (-_MOST, _MOST)  # a log may contain any number


def _scale(values: tuple[float, float], start: float, end: float) -> Callable[[float], float]:
    low, high = values
    return lambda value: start + (end - start) * min(1.0, max(0.0, (value - low) / (high - low)))


def _ticks(values: tuple[float, float]) -> list[float]:
    """Return a few round numbers in a range: multiples of 1, 2 or 5 times a power of ten."""
    low, high = values
    rough = (high - low) / _TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * unit for factor in (1, 2, 5) if factor * unit >= rough), 10 * unit)
    first = math.ceil(low / step)
    return [number * step for number in range(first, first + _TICKS + 2) if number * step <= high]


def _ticks_of_powers(values: tuple[float, float]) -> list[float]:
    """Return the exponents of powers of ten in a range, or of a few round numbers if the range is narrow."""
    low, high = values[0], min(values[1], _LARGEST_POWER)
    if low >= high:
        return []  # the range begins above the largest power that a float can hold
    if high - low < _NARROW:
        return [math.log10(number) for number in _ticks((10**low, 10**high)) if number > 0]
    return [float(power) for power in range(math.ceil(low), math.floor(high) + 1, math.ceil((high - low) / _TICKS))]


def _number(value: float) -> str:
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e6 else f"{value:.4g}"


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return as many points as a chart can show, with the minimum and maximum of each column."""
    if len(points) <= 2 * _COLUMNS:
        return points
    kept = []
    for column in range(_COLUMNS):
        part = points[column * len(points) // _COLUMNS : (column + 1) * len(points) // _COLUMNS]
        extremes = {part.index(min(part, key=_y)), part.index(max(part, key=_y))}
        kept += [part[index] for index in sorted(extremes)]
    return kept


def _y(point: tuple[float, float]) -> float:
    return point[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One secondary status, from its start to the start of the next one."""

    status: str
    kind: str
    """``waiting``, ``copying``, ``training``, ``lost``, ``ending``, ``done`` or ``failed``."""
    message: str
    began: datetime
    seconds: float
    left: float
    """Start of its bar, in percent."""
    width: float
    """Width of its bar, in percent."""
    attempt: int
    """The number of the training attempt, from 1; 0 for other phases."""


def phases(transitions: Sequence[Mapping[str, Any]], now: datetime) -> list[Phase]:
    """Return a job's phases from its SecondaryStatusTransitions; a phase without an end lasts until `now`."""
    starts = [each["StartTime"] for each in transitions]
    ends = [*starts[1:], *(each.get("EndTime", now) for each in transitions[-1:])]
    spans = [max(0.0, (end - start).total_seconds()) for start, end in zip(starts, ends, strict=True)]
    whole = sum(spans) or 1.0
    shares = [max(span / whole, _LEAST_SHARE) for span in spans]
    shown, left, attempt = [], 0.0, 0
    for each, seconds, share in zip(transitions, spans, shares, strict=True):
        kind = _KINDS.get(each["Status"], "waiting")
        attempt += kind == "training"
        width = 100 * share / sum(shares)
        shown.append(
            Phase(
                status=each["Status"],
                kind=kind,
                message=masked_text(shown_line(each.get("StatusMessage", ""))),
                began=each["StartTime"],
                seconds=seconds,
                left=left,
                width=width,
                attempt=attempt if kind == "training" else 0,
            )
        )
        left += width
    return shown
