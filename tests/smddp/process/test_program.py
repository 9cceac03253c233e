"""A program that is told of stops: of one that came while it was being started, too, and of each once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from smddp.process.program import Program, await_exit, forward_signals
from tests.terminal import read_until


@pytest.fixture(autouse=True)
def _own_handlers() -> Any:
    restore = forward_signals(lambda _: None, lambda _: None)
    restore()
    yield
    restore()


def test_tells_a_program_once_of_a_stop_that_comes_while_it_starts(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told, heard = [], []
    start = subprocess.Popen

    def start_slowly(*arguments: Any, **options: Any) -> Any:
        process = start(*arguments, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(subprocess, "Popen", start_slowly)
    program = Program(
        [sys.executable, "-c", "import sys, time; print('up', file=sys.stderr, flush=True); time.sleep(60)"],
        stop=lambda pid, signum: told.append((pid, signum)),
        pass_on=lambda pid, signum: told.append((pid, signum)),
        heed=heard.append,
    )
    pid = program.process.pid
    assert told == [(pid, signal.SIGTERM)]
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert told[1:] == [(pid, signal.SIGINT), (pid, signal.SIGUSR1)]
    assert program.stops == [signal.SIGTERM, signal.SIGINT]
    while not heard:
        pass
    program.process.kill()
    program.process.wait()
    assert program.exit_code() == 128 + signal.SIGKILL
    assert b"".join(heard) == b"up\n"
    assert capfd.readouterr().err == "up\n"


def test_puts_the_earlier_handlers_back() -> None:
    earlier = signal.getsignal(signal.SIGTERM)
    forward_signals(lambda _: None, lambda _: None)()
    assert signal.getsignal(signal.SIGTERM) == earlier


def test_the_end_of_a_child_ends_the_wait_at_once_and_leaves_the_child_to_be_reaped() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    began = time.monotonic()
    await_exit(child.pid, 0.1)
    assert time.monotonic() - began >= 0.1
    child.kill()
    await_exit(child.pid, 3600)
    assert os.waitpid(child.pid, os.WNOHANG)[0] == child.pid
    child.returncode = -signal.SIGKILL  # reaped above


def test_the_wait_for_a_child_has_its_limit_on_a_kernel_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    began = time.monotonic()
    await_exit(os.getpid(), 0.1)
    assert time.monotonic() - began >= 0.1


def test_a_jobs_log_is_no_terminal_even_if_a_terminal_carries_it() -> None:
    """A live line would be in the log of a host whose output Slurm carries through a terminal."""
    driver = """
import sys
from smddp.process.program import Program, wait_for
program = Program([sys.executable, "-c", "import os; print(os.isatty(1), os.isatty(2), flush=True)"],
                  stop=print, pass_on=print, heed=lambda _: None)
wait_for(program.process)
program.exit_code()
"""
    ours, theirs = os.openpty()
    process = subprocess.Popen([sys.executable, "-c", driver], stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        assert read_until(ours, b"\n").split() == [b"True", b"False"]
        assert process.wait(60) == 0
    finally:
        os.close(ours)
