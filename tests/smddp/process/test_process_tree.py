"""Ranks below a process, which are told of a stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from smddp.process import process_tree
from smddp.process.process_tree import RankStops

Start = Callable[..., "subprocess.Popen[str]"]
HEARS = "trap 'echo told' TERM; echo up; while :; do sleep 0.05; done"
DEAF = "echo up; exec sleep 60"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a rank of mpirun, and waits until it is up."""
    ranks: list[subprocess.Popen[str]] = []

    def start_rank(text: str) -> subprocess.Popen[str]:
        environ = {**os.environ, "OMPI_COMM_WORLD_RANK": str(len(ranks))}
        ranks.append(subprocess.Popen(["sh", "-c", text], env=environ, stdout=subprocess.PIPE, text=True))
        assert said(ranks[-1]) == "up"
        return ranks[-1]

    yield start_rank
    for rank in ranks:
        rank.kill()
        rank.wait()


def said(rank: subprocess.Popen[str]) -> str:
    assert rank.stdout is not None
    return rank.stdout.readline().strip()


@pytest.mark.parametrize(
    ("words", "shown"),
    [(["-c", "input()"], "-c"), (["-m", "code", "-q"], "-m code")],
)
def test_a_process_is_shown_with_its_script_or_module(words: list[str], shown: str) -> None:
    with subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE) as process:
        while not (found := process_tree.command_line(process.pid)):  # the kernel has not set it yet
            pass
        process.kill()
    assert found == f"{sys.executable} {shown}"


def test_each_rank_is_told_of_each_stop_once(start: Start) -> None:
    stops, ranks = RankStops(os.getpid()), [start(HEARS)]
    for count in (1, 2):
        for _ in range(3):
            stops.tell([signal.SIGTERM] * count)
        assert [said(rank) for rank in ranks] == ["told"] * count
        ranks.append(start(HEARS))
        stops.tell([signal.SIGTERM] * count)
        assert said(ranks[-1]) == "told", "it was started after the stop"


def test_a_rank_without_a_handler_is_spared_while_it_is_new(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    stops, rank = RankStops(os.getpid()), start(DEAF)
    stops.tell([signal.SIGTERM])
    assert rank.poll() is None
    monkeypatch.setattr(process_tree, "START_SECONDS", -1.0)
    stops.tell([signal.SIGTERM])
    assert rank.wait(timeout=30) == -signal.SIGTERM
