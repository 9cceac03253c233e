"""A program that is told of stops: of one that came while it was being started, too, and of each once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from smddp.process.program import Program, forward_signals


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
