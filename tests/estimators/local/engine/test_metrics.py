"""The last finite value of each metric."""

from __future__ import annotations

import time

from estimators.local.engine.metrics import MAX_LINE, MetricDefinition, Metrics


def read(*lines: str, **definitions: str) -> dict[str, float]:
    metrics = Metrics(MetricDefinition.parse(name, regex) for name, regex in definitions.items())
    for line in lines:
        metrics.read(line)
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
