"""When the launcher of the ranks began, and what is logged until they have."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from smddp.process import rank_start
from smddp.process.heartbeat import Heartbeat
from smddp.process.process_tree import age
from smddp.process.rank_start import RankStart, launch_variables, launched

RANK = (
    "import signal, sys; sys.stdin.readline(); signal.signal(signal.SIGTERM, HANDLER); print(flush=True); "
    "sys.stdin.readline()"
)


@pytest.fixture
def script_told_every(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Callable[[float], Path]:
    """A script that names smddp, whose start is logged in this interval."""

    def make(seconds: float) -> Path:
        caplog.set_level(logging.INFO)
        monkeypatch.setattr(rank_start, "Heartbeat", partial(Heartbeat, every=seconds))
        script = tmp_path / "train.py"
        script.write_text("import smddp")
        return script

    return make


def start_rank(number: int = 0, *, ends: bool = False) -> subprocess.Popen[str]:
    """Start a rank, which begins at a line of input; one that `ends` is then at the end of ``smddp.run``."""
    launched = {"TORCHELASTIC_RUN_ID": "0", "TORCHELASTIC_RESTART_COUNT": "0", "RANK": str(number)}
    return subprocess.Popen(
        [sys.executable, "-c", RANK.replace("HANDLER", "signal.SIG_IGN" if ends else "print")],
        env=os.environ | launched,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_start_is_told_until_each_rank_has_its_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(rank_start, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(rank_start, "Heartbeat", partial(Heartbeat, every=0.02))
    rank = start_rank()
    assert rank.stdin is not None
    assert rank.stdout is not None
    script = tmp_path / "train.py"
    script.write_text("import torch")
    with RankStart(script) as start:
        start.look()
        time.sleep(0.1)
        assert caplog.messages == []  # such a script never shows that it has begun
    script.write_text("import smddp")
    with rank, RankStart(script) as start:
        start.look()
        while not caplog.messages:
            time.sleep(0.01)
        rank.stdin.write("\n")
        rank.stdin.flush()
        rank.stdout.readline()
        start.look()
        time.sleep(0.1)  # a line under way
        told = list(caplog.messages)
        time.sleep(0.1)
        assert caplog.messages == told
        rank.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("has_begun", [False, True])
def test_no_line_follows_the_failure_of_a_rank(
    has_begun: bool, caplog: pytest.LogCaptureFixture, script_told_every: Callable[[float], Path]
) -> None:
    """The other rank still starts, and nothing looks between the failure and the next line."""
    script = script_told_every(0.5)
    with start_rank() as failing, start_rank(1) as starting:
        assert failing.stdin is not None
        assert failing.stdout is not None
        assert starting.stdin is not None
        if has_begun:
            failing.stdin.write("\n")
            failing.stdin.flush()
            failing.stdout.readline()
        with RankStart(script) as start:
            start.look()
            failing.kill()
            before = list(caplog.messages)
            time.sleep(1.2)  # two lines, if it went on
        starting.kill()
    assert caplog.messages == before


def test_a_launcher_tells_its_ranks_when_it_began() -> None:
    assert launched(launch_variables()) == pytest.approx(time.time() - age(os.getpid()), abs=0.1)


def test_without_a_launcher_it_is_the_process_itself() -> None:
    assert launched({}) == pytest.approx(time.time() - age(os.getpid()), abs=0.1)
    assert launched({"SMDDP_LAUNCHED": "yesterday"}) == pytest.approx(launched({}), abs=0.1)


def test_a_rank_of_stock_torchrun_takes_its_parent() -> None:
    program = "from smddp.process.rank_start import launched; import os; print(launched(os.environ))"
    environ = {**os.environ, "TORCHELASTIC_RUN_ID": "run"}
    told = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert float(told.stdout) == pytest.approx(time.time() - age(os.getpid()), abs=0.1)


def test_no_rank_is_said_to_start_before_the_nodes_have_met(
    caplog: pytest.LogCaptureFixture, script_told_every: Callable[[float], Path]
) -> None:
    script = script_told_every(0.02)
    with RankStart(script, nodes=2) as start:
        time.sleep(0.2)
        assert caplog.messages == []  # the agents tell which node is awaited
        with start_rank() as rank:
            start.look()
            while not any("the ranks are starting" in each for each in caplog.messages):
                time.sleep(0.01)
            rank.kill()


def test_no_line_follows_the_end_of_a_short_run(
    caplog: pytest.LogCaptureFixture, script_told_every: Callable[[float], Path]
) -> None:
    """The whole run fits between two looks, and Python takes a while to end."""
    script = script_told_every(0.5)
    with RankStart(script) as start, start_rank(ends=True) as ending:
        assert ending.stdin is not None
        assert ending.stdout is not None
        start.look()
        ending.stdin.write("\n")
        ending.stdin.flush()
        ending.stdout.readline()
        before = len(caplog.messages)  # a busy machine may take half a second to start the rank
        time.sleep(1.2)  # two lines, if it went on
        ending.kill()
    assert len(caplog.messages) == before


def test_only_the_first_node_tells(
    caplog: pytest.LogCaptureFixture, script_told_every: Callable[[float], Path]
) -> None:
    script = script_told_every(0.02)
    with RankStart(script, nodes=2, is_first=False) as start, start_rank(1) as rank:
        start.look()
        time.sleep(0.2)
        rank.kill()
    assert caplog.messages == []
