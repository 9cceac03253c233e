"""The last finite value of each metric."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from estimators.job_handle import matcher
from estimators.local.engine.hosted import metrics as module
from estimators.local.engine.hosted.metrics import Metrics
from estimators.local.engine.records import StoredLine
from estimators.local.engine.records.store import write_time
from estimators.metric_definition import MAX_LINE, MetricDefinition
from tests.estimators.local.processes import is_alive


def read(*lines: str, **definitions: str) -> dict[str, float]:
    metrics = Metrics(MetricDefinition.parse(name, regex) for name, regex in definitions.items())
    for line in lines:
        metrics.read(line, 0)
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


def test_each_state_of_a_progress_bar_is_searched() -> None:
    bar = "\r".join(f"{number}% loss={200 - number}" for number in range(100))
    assert read(bar, loss="loss=([0-9]+)") == {"loss": 101.0}
    assert read("x" * MAX_LINE + "\rloss=1\r", loss="loss=([0-9]+)") == {"loss": 1.0}


def test_a_regex_that_backtracks_meets_no_more_than_that() -> None:
    began = time.monotonic()
    assert read("a" * 10_000_000, loss="(a*)b") == {}
    assert time.monotonic() - began < 30


def test_a_regex_of_exponential_time_is_given_up_and_holds_nothing_else_up(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics([MetricDefinition.parse("bad", "(a+)+b"), MetricDefinition.parse("loss", "loss=([0-9]+)")])
    for line in ("loss=1", "a" * 100 + " loss=2", "a" * 100 + " loss=3"):
        metrics.read(line, 0)
    metrics.settle()
    assert [(entry["MetricName"], entry["Value"]) for entry in metrics.describe()] == [("loss", 3.0)]
    assert caplog.messages == [
        "[platform] The metric bad is given up: its regex took over 0.5 seconds of CPU time for one line, "
        "or 10 ms a line"
    ]


def test_a_value_has_the_time_of_its_line() -> None:
    metrics = Metrics([MetricDefinition.parse("loss", "loss=([0-9]+)")])
    metrics.read("loss=1", 1_700_000_000_123)
    metrics.settle()
    (entry,) = metrics.describe()
    assert entry["Timestamp"] == datetime(2023, 11, 14, 22, 13, 20, 123_000, timezone.utc)


def test_lines_whose_values_a_killed_platform_did_not_save_are_searched_by_the_next() -> None:
    definitions = [MetricDefinition.parse("loss", "loss=([0-9]+)"), MetricDefinition.parse("acc", "acc=([0-9]+)")]
    killed = Metrics(definitions)
    killed.read("loss=3", 2_000)
    killed.settle()
    kept = [
        StoredLine("s", 1_000, "acc=9"),  # searched: the matcher has answered a later line
        StoredLine("s", 2_000, "loss=3"),
        StoredLine("s", 2_001, "loss=5 acc=1"),
        StoredLine("s", 2_002, "[platform] loss=7"),
    ]
    later = Metrics(definitions)
    later.restore(json.loads(json.dumps(killed.to_json(), default=write_time)))
    later.read_again(lambda time: (line for line in kept if line.time > time))
    loss, acc = (summary.describe() for summary in later.summaries().values())
    assert (loss["Last"], loss["Count"], loss["Min"]) == (5.0, 2, 3.0)
    assert (acc["Last"], acc["Count"]) == (1.0, 1)


def test_lines_after_a_pause_are_read_too() -> None:
    metrics = Metrics([MetricDefinition.parse("loss", "loss=([0-9]+)")])
    for line in ("loss=1", "loss=\u2028 loss=2\n"):
        metrics.read(line, 0)
        metrics.settle()
    assert [entry["Value"] for entry in metrics.describe()] == [2.0]


EXPONENTIAL = "(a*)*b"
"""Takes twice as long for each further ``a``."""


def slow_length() -> int:
    """So many make it take a tenth of a second or two, which is never too long for one line."""
    for length in range(15, 40):
        began = time.process_time()
        re.search(EXPONENTIAL, "a" * length)
        if time.process_time() - began > 0.06:
            return length
    raise AssertionError


def test_a_regex_that_is_a_bit_slow_for_each_line_is_given_up() -> None:
    told: list[str] = []
    metrics = Metrics([MetricDefinition.parse("slow", EXPONENTIAL), MetricDefinition.parse("loss", "loss=([0-9]+)")])
    metrics.report_to(told.append)
    slow = "a" * slow_length()
    for number in range(100):
        metrics.read(f"{slow} loss={number}", 0)
    metrics.settle()
    assert [(entry["MetricName"], entry["Value"]) for entry in metrics.describe()] == [("loss", 99.0)]
    assert len(told) == 1
    assert "The metric slow is given up" in told[0]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No regex is given up, whatever it takes."""
    monkeypatch.setattr(matcher, "MATCH_SECONDS", 1000)
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.3)
    return []


@pytest.mark.usefixtures("patient")
def test_neither_who_prints_nor_the_jobs_end_waits_for_a_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 1 << 20)
    told: list[str] = []
    metrics = Metrics([MetricDefinition.parse("bad", EXPONENTIAL)])
    metrics.report_to(told.append)
    began = time.monotonic()
    for _ in range(20_000):
        metrics.read("a" * 100, 0)
    metrics.settle()
    assert time.monotonic() - began < 30
    assert [line.startswith("[platform] The last lines are not searched") for line in told] == [True, False]
    assert re.fullmatch(r"\[platform\] \d+ lines were not searched for metrics: .*", told[1])


def test_a_match_does_not_outlive_a_platform_that_is_killed() -> None:
    program = f"""
        from estimators.job_handle import matcher
        from estimators.local.engine.hosted import metrics as module
        matcher.MATCH_SECONDS = 1000
        one = module.Matching([{EXPONENTIAL!r}], lambda *found: print(*found, flush=True), print)
        print(one._process._process.pid, flush=True)
        one.send("b", 7)
        one.send("a" * 100, 8)
        input()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as platform:
        assert platform.stdout is not None
        pid = int(platform.stdout.readline())
        assert platform.stdout.readline() == "0  7\n"  # it is at the second line by now, or will be at once
        platform.kill()
    deadline = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_answer_that_the_process_was_killed_in_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "matcher.py"
    program.write_text("""if True:
        import os, sys
        sys.stdin.readline()
        os.write(1, b'[0, "1", 0]\\n[0, "2')
    """)
    monkeypatch.setattr(matcher, "__file__", str(program))
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    assert read("loss=1", loss="loss=([0-9]+)") == {"loss": 1.0}
    assert failed == []
