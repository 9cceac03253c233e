"""The last finite value of each metric."""

from __future__ import annotations

import time

import pytest

from estimators.local.engine.metrics import MAX_LINE, MetricDefinition, Metrics


def read(*lines: str, **definitions: str) -> dict[str, float]:
    metrics = Metrics(MetricDefinition.parse(name, regex) for name, regex in definitions.items())
    for line in lines:
        metrics.read(line)
    metrics.settle()
    return {entry["MetricName"]: entry["Value"] for entry in metrics.describe()}


def test_the_last_value_stays() -> None:
    assert read("loss=3", "loss=2.5e-1 acc=1", "nothing", loss=r"loss=(\S+)", acc="acc=([0-9.]+)") == {
        "loss": 0.25,
        "acc": 1.0,
    }


def test_a_metric_that_was_never_printed_is_left_out() -> None:
    assert read("loss=3", acc="acc=([0-9.]+)") == {}


def test_what_is_no_finite_number_is_passed_over() -> None:
    assert read("loss=1", "loss=nan", "loss=inf", "loss=many", "loss=", loss=r"loss=(\S*)") == {"loss": 1.0}


def test_a_group_that_took_no_part_is_passed_over() -> None:
    assert read("loss=", loss="loss=([0-9]+)?") == {}


def test_only_the_beginning_of_an_endless_line_is_searched() -> None:
    assert read("x" * MAX_LINE + "loss=1", loss="loss=([0-9]+)") == {}


def test_a_regex_that_backtracks_meets_no_more_than_that() -> None:
    began = time.monotonic()
    assert read("a" * 10_000_000, loss="(a*)b") == {}
    assert time.monotonic() - began < 5


def test_a_regex_of_exponential_time_is_given_up_and_holds_nothing_else_up(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics([MetricDefinition.parse("bad", "(a+)+b"), MetricDefinition.parse("loss", "loss=([0-9]+)")])
    for line in ("loss=1", "a" * 100 + " loss=2", "a" * 100 + " loss=3"):
        metrics.read(line)
    metrics.settle()
    assert [(entry["MetricName"], entry["Value"]) for entry in metrics.describe()] == [("loss", 3.0)]
    assert caplog.messages == ["the metric bad is given up: its regex took over 0.5 s of CPU time"]


def test_lines_after_a_pause_are_read_too() -> None:
    metrics = Metrics([MetricDefinition.parse("loss", "loss=([0-9]+)")])
    for line in ("loss=1", "loss=\u2028 loss=2\n"):
        metrics.read(line)
        metrics.settle()
    assert [entry["Value"] for entry in metrics.describe()] == [2.0]
