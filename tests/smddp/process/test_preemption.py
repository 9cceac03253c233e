import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from smddp.process.exit_codes import RESUMABLE
from smddp.process.preemption import Stopped, StopSignal


def test_sigterm_sets_the_flag_and_a_second_one_changes_nothing() -> None:
    with StopSignal() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested


def test_a_stop_arrives_if_the_parent_had_blocked_it() -> None:
    program = """
import os, signal
from smddp.process.preemption import StopSignal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with StopSignal() as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    print(stop.requested)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n")


def test_the_handler_that_was_there_comes_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_its_age_counts_from_the_first_sigterm() -> None:
    with StopSignal() as stop:
        assert stop.age == -1
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.age >= 0.02


def test_entering_again_forgets_the_last_stop() -> None:
    stop = StopSignal()
    with stop:
        os.kill(os.getpid(), signal.SIGTERM)
    with stop:
        assert not stop.requested
        assert stop.age == -1


def test_a_stop_passes_through_a_script_that_catches_every_exception() -> None:
    with pytest.raises(Stopped) as stopped:
        try:
            raise Stopped
        except Exception:  # what training scripts do
            pytest.fail("the stop was taken for an error")
    assert stopped.value.code == RESUMABLE == 75


def test_left_alone_a_stop_ends_the_process_as_resumable_and_without_a_traceback() -> None:
    program = "from smddp.process.preemption import Stopped\nraise Stopped"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 75
    assert done.stderr == ""


def test_a_stop_that_comes_while_watching_starts_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    install = signal.signal

    def install_and_stop(signum: int, handler: Any) -> Any:
        previous = install(signum, handler)
        os.kill(os.getpid(), signum)
        return previous

    stop = StopSignal()
    monkeypatch.setattr(signal, "signal", install_and_stop)
    with stop:
        monkeypatch.undo()
        assert stop.requested
