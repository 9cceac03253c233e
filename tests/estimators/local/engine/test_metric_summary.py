"""The statistics of a metric, value by value, beside those of all values at once."""

from __future__ import annotations

import json
import statistics
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.local.engine.metric_summary import MetricSummary
from estimators.local.engine.records import write_time

BEGIN = datetime(2030, 1, 1, tzinfo=timezone.utc)


def summary_of(values: list[float]) -> MetricSummary:
    summary = MetricSummary.of(values[0], BEGIN)
    for second, value in enumerate(values[1:], 1):
        summary = summary.added(value, BEGIN + timedelta(seconds=second))
    return summary


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_the_statistics_are_those_of_all_values(values: list[float]) -> None:
    shown = summary_of(values).describe()
    assert (shown["Min"], shown["Max"], shown["Last"]) == (min(values), max(values), values[-1])
    assert shown["Count"] == len(values)
    assert shown["Avg"] == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert shown["StdDev"] == pytest.approx(statistics.pstdev(values), rel=1e-6, abs=1e-3)


def test_the_last_value_is_the_one_with_the_latest_time() -> None:
    late = summary_of([1.0, 3.0]).added(2.0, BEGIN - timedelta(seconds=9)).describe()
    assert (late["Last"], late["Min"], late["Count"], late["Avg"]) == (3.0, 1.0, 3, 2.0)


def test_what_no_float_holds_is_left_out() -> None:
    shown = summary_of([1.7e308, -1.7e308]).describe()
    assert (shown["Avg"], "StdDev" in shown) == (0.0, False)


def test_it_is_the_same_after_it_was_kept() -> None:
    summary = summary_of([1.5, 2.5])
    assert MetricSummary.from_json(json.loads(json.dumps(summary.to_json(), default=write_time))) == summary
