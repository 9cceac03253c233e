"""Charts of whatever a log may say."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.console.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Series, chart
from estimators.console.job_watch import MOST_VALUES, MetricCurve, MetricPoint

BEGAN = datetime(2026, 11, 23, tzinfo=timezone.utc)
_NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def points(*values: tuple[float | None, float]) -> list[MetricPoint]:
    return [
        MetricPoint(time=BEGAN + timedelta(seconds=second), step=step, value=value)
        for second, (step, value) in enumerate(values)
    ]


@given(st.lists(st.tuples(_NUMBERS | st.none(), _NUMBERS), min_size=1), st.booleans())
def test_any_values_lie_within_the_chart(values: list[tuple[float | None, float]], logarithmic: bool) -> None:
    drawn = chart("loss", [Series(job="a", attempts=[[], points(*values)], began=BEGAN)], logarithmic=logarithmic)
    [line] = drawn.lines
    assert len(line.points) == len(values)
    for x, y in line.points:
        assert LEFT <= x <= WIDTH - RIGHT
        assert TOP <= y <= HEIGHT - BOTTOM
    assert all(math.isfinite(position) and len(label) < 12 for position, label in (*drawn.x_ticks, *drawn.y_ticks))


def test_ticks_are_round_and_a_peak_survives_the_thinning() -> None:
    values = [(float(step), 5.0 if step == 7777 else 1.0) for step in range(10_000)]
    drawn = chart("loss", [Series(job="a", attempts=[points(*values)], began=BEGAN)])
    assert [label for _, label in drawn.x_ticks] == ["0", "5000"]
    assert [label for _, label in drawn.y_ticks] == ["2", "4"]
    [line] = drawn.lines
    assert len(line.points) <= 600
    assert min(y for _, y in line.points) < TOP + 10


def test_ticks_of_a_logarithmic_chart_are_round() -> None:
    wide, narrow = [
        chart("loss", [Series(job="a", attempts=[points(*values)], began=BEGAN)], logarithmic=True)
        for values in ([(1, 0.00002), (2, 90)], [(1, 0.95), (2, 0.99)])
    ]
    assert [label for _, label in wide.y_ticks] == ["0.0001", "0.01", "1", "100"]
    assert [label for _, label in narrow.y_ticks] == ["0.96", "0.98"]


@pytest.mark.parametrize("values", [(1.2e308, 1.3e308), (1.2e308,), (1.797e308, 1.7975e308), (1e-320, 1.7e308)])
def test_a_logarithmic_chart_goes_up_to_the_largest_number(values: tuple[float, ...]) -> None:
    placed = points(*((step, value) for step, value in enumerate(values)))
    drawn = chart("loss", [Series(job="a", attempts=[placed], began=BEGAN)], logarithmic=True)
    assert drawn.is_logarithmic
    assert all(TOP <= y <= HEIGHT - BOTTOM for line in drawn.lines for _, y in line.points)
    assert all(math.isfinite(float(text)) for _, text in drawn.y_ticks)


def test_a_course_of_many_values_keeps_some_from_all_over() -> None:
    curve = MetricCurve()
    for step in range(3 * MOST_VALUES):
        curve.add(MetricPoint(time=BEGAN, step=step, value=step))
    steps = [point.step for point in curve.points]
    assert len(steps) <= MOST_VALUES
    assert steps == list(range(0, 3 * MOST_VALUES, curve.every))
    assert (curve.count, curve.last) == (3 * MOST_VALUES, 3 * MOST_VALUES - 1)
