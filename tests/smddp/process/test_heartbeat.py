import logging
import re
import threading
import time
from types import SimpleNamespace

import pytest

from smddp.process import heartbeat
from smddp.process.heartbeat import Heartbeat


def test_a_line_comes_again_and_again_until_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Heartbeat("no step yet", every=0.02):
        deadline = time.monotonic() + 30
        while len(caplog.messages) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    time.sleep(0.1)  # a line under way
    told = list(caplog.messages)
    time.sleep(0.1)
    assert caplog.messages == told
    assert all(re.fullmatch(r"no step yet: \d+ s so far", line) for line in told)


def test_what_ends_soon_says_nothing_and_what_does_not_end_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    with Heartbeat("installing"):
        pass
    now = [0.0]
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def say(line: str) -> None:
        said.append(line)
        assert len(said) < 5
        now[0] += 12

    said: list[str] = []
    bounded = Heartbeat("starting", most=20.0, every=0.001, say=say)
    bounded._beat(threading.Event(), "starting")
    assert said == ["starting: 0 s so far", "starting: 12 s so far"]
    assert caplog.messages == []


def test_a_function_says_what_is_under_way_and_when_it_is_over() -> None:
    said: list[str] = []
    Heartbeat(lambda: f"step {len(said)}", until=lambda: len(said) == 2, say=said.append, every=0.01).start()
    deadline = time.monotonic() + 30
    while len(said) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.1)
    assert [line.partition(":")[0] for line in said] == ["step 0", "step 1"]


def test_an_empty_text_is_no_line() -> None:
    said: list[str] = []
    asked: list[None] = []

    def what() -> str:
        asked.append(None)
        return "" if len(asked) < 3 else "training"

    with Heartbeat(what, until=lambda: bool(said), say=said.append, every=0.01):
        deadline = time.monotonic() + 30
        while not said:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert len(said) == 1
    assert re.fullmatch(r"training: \d+ s so far", said[0])
    assert len(asked) == 3


def test_another_wait_ends_the_one_before_and_counts_its_own_seconds() -> None:
    said: list[str] = []
    deadline = time.monotonic() + 30
    with Heartbeat("the job is Training", say=said.append, every=0.2) as heartbeat:
        while not said or said[-1].endswith(": 0 s so far"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        heartbeat.start("the results are collected")
        while sum("results" in line for line in said) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    first = next(number for number, line in enumerate(said) if "results" in line)
    assert said[first] == "the results are collected: 0 s so far"
    assert not any("Training" in line for line in said[first:])
