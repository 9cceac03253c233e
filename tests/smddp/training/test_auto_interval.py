import logging
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smddp.training.save_schedule import AutoInterval, best_interval

MINUTE, HOUR = 60.0, 3600.0

costs = st.floats(1e-4, 1e3)
means = st.floats(1e3, 1e8)


@pytest.mark.parametrize(("between_failures", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_it_is_what_dalys_paper_gives_for_a_save_of_five_minutes(between_failures: float, minutes: float) -> None:
    assert best_interval(5 * MINUTE, between_failures) / MINUTE == pytest.approx(minutes, abs=0.5)


def lost(interval: float, cost: float, between_failures: float) -> float:
    """Daly's whole model of the time that a run takes, over the time that it trains, with a restart that is free."""
    return between_failures * math.expm1((interval + cost) / between_failures) / interval


@given(cost=costs, between_failures=means, other=st.floats(0.01, 100))
def test_no_other_interval_loses_less(cost: float, between_failures: float, other: float) -> None:
    interval = best_interval(cost, between_failures)
    assume(cost < between_failures / 2)
    assume(other * interval < 500 * between_failures)  # or exp overflows
    assert lost(interval, cost, between_failures) <= lost(other * interval, cost, between_failures) * 1.002


@given(cost=costs, between_failures=means)
def test_dear_saves_are_rarer_and_frequent_failures_make_them_more_frequent(
    cost: float, between_failures: float
) -> None:
    assume(cost * 4 < between_failures)
    interval = best_interval(cost, between_failures)
    assert 0 < best_interval(cost, between_failures / 2) <= interval <= best_interval(cost * 2, between_failures)


def test_saves_that_take_longer_than_failures_are_apart_come_at_every_failure() -> None:
    assert best_interval(10 * HOUR, HOUR) == HOUR


def test_the_interval_follows_the_measured_stall() -> None:
    auto = AutoInterval(1000 * HOUR)
    assert auto.after(stall=0.1, durable=1) == best_interval(0.1, 1000 * HOUR)
    for _ in range(5):
        latest = auto.after(stall=0.4, durable=1)
    assert latest == best_interval(0.4, 1000 * HOUR)


def test_one_slow_save_among_fast_ones_changes_nothing() -> None:
    auto = AutoInterval(1000 * HOUR)
    before = [auto.after(stall=0.1, durable=1) for _ in range(3)][-1]
    assert auto.after(stall=10, durable=1) == before


def test_a_save_is_durable_before_the_next_one_is_due() -> None:
    assert AutoInterval(HOUR).after(stall=0.01, durable=500) == 500


def test_it_is_told_once_and_again_when_it_doubled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="smddp.training.save_schedule")
    auto = AutoInterval(100 * HOUR)
    for _ in range(10):
        auto.after(stall=0.1, durable=1)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("a checkpoint every 268 s: one keeps training waiting for 0.1 s")
    assert caplog.messages[0].endswith("a failure is expected every 100 h")
    for _ in range(10):
        auto.after(stall=0.3, durable=1)  # the interval grows by the root of 3
    assert len(caplog.messages) == 1
    for _ in range(10):
        auto.after(stall=0.5, durable=1)
    assert len(caplog.messages) == 2
