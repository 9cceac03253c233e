"""Ctrl-C, in a process of its own each time: signals are the whole process's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from estimators.local_mode.interrupts import Interrupts


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A process in place of Compose's, which prints each signal, and the file that names it."""
    program = (
        "import signal\n"
        "for number in (signal.SIGTERM, signal.SIGHUP):\n"
        "    signal.signal(number, lambda number, _: print(signal.Signals(number).name, flush=True))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (tmp_path / "process").write_text(str(process.pid))
        yield tmp_path / "process", process
        process.kill()


def test_ctrl_c_goes_to_the_containers_and_not_to_the_sdk(
    stand_in: tuple[Path, subprocess.Popen[str]], caplog: pytest.LogCaptureFixture
) -> None:
    file, process = stand_in
    assert process.stdout is not None
    with Interrupts(file) as interrupts:
        for said in ("120 s to save a checkpoint", "at once"):
            os.kill(os.getpid(), signal.SIGINT)
            assert process.stdout.readline() == "SIGTERM\n"
            assert said in caplog.messages[-1]
    assert interrupts.came
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_no_container_runs_is_python_s_own(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts(tmp_path / "process") as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    assert not interrupts.came


def test_a_handler_of_the_users_own_stays(tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts(tmp_path / "process"):
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_in_another_thread_nothing_is_caught(tmp_path: Path) -> None:
    caught: list[object] = []

    def enter() -> None:
        with Interrupts(tmp_path / "process"):
            caught.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert caught == [signal.default_int_handler]


def test_what_breaks_off_the_sdk_ends_the_hosts_first(
    stand_in: tuple[Path, subprocess.Popen[str]],
) -> None:
    file, process = stand_in
    told = []

    def end_when_told() -> None:
        assert process.stdout is not None
        told.append(process.stdout.readline())
        file.unlink()

    host = threading.Thread(target=end_when_told)
    host.start()
    interrupts = Interrupts(file)
    with pytest.raises(TimeoutError, match="mine"), interrupts:
        raise TimeoutError("mine")
    assert (told, interrupts.had_to_end_it) == (["SIGHUP\n"], True)
    host.join()


def test_an_exception_when_no_container_runs_is_the_sdk_s_own(tmp_path: Path) -> None:
    interrupts = Interrupts(tmp_path / "process")
    with pytest.raises(RuntimeError), interrupts:
        raise RuntimeError
    assert not interrupts.had_to_end_it
