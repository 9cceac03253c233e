from __future__ import annotations

import fcntl
import os
import signal
import struct
import sys
import termios
import threading
import time

import pytest

from smddp.process import children as module
from smddp.process import output_lines
from smddp.process.children import ChildProcesses, ProcessExit, exit_code
from tests.terminal import read_until

STOPPABLE = """
import signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
open(sys.argv[1], "w").close()
while not stop: time.sleep(0.005)
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""


def exits(*codes: int) -> list[ProcessExit]:
    return [ProcessExit(index=index, pid=index, code=code) for index, code in enumerate(codes)]


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ((), 0),
        ((0, 0), 0),
        ((75, 75), 75),
        ((0, 75), 75),
        ((0, 3, 1), 3),
        ((75, 1), 1),
        ((137, 143), 137),
    ],
)
def test_one_exit_code_for_all(codes, code):
    assert exit_code(exits(*codes)) == code


@pytest.fixture
def group():
    group = ChildProcesses()
    yield group
    group.kill()


def start(group, code, *arguments):
    return group.start([sys.executable, "-c", code, *map(str, arguments)], environ=os.environ)


def await_end(group):
    deadline = time.monotonic() + 20
    while not group.poll(0.5):
        assert time.monotonic() < deadline


def await_files(*paths):
    deadline = time.monotonic() + 20
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_when_one_fails_the_others_are_ended_and_its_code_is_kept(group):
    start(group, "import time; time.sleep(60)")
    start(group, "raise SystemExit(3)")
    await_end(group)
    assert [(exited.index, exited.code) for exited in group.exits] == [(1, 3), (0, 143)]
    assert exit_code(group.exits) == 3


def test_a_forwarded_stop_lets_the_slow_one_finish_after_the_quick_one(group, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FAILURE_GRACE", 0.0)  # must not count here
    start(group, STOPPABLE, tmp_path / "a", 0.0, 75)
    start(group, STOPPABLE, tmp_path / "b", 0.8, 75)
    await_files(tmp_path / "a", tmp_path / "b")
    assert group.forward(signal.SIGTERM)
    await_end(group)
    assert [exited.code for exited in group.exits] == [75, 75]


def test_one_that_ends_resumable_by_itself_gives_its_peers_the_long_grace(group, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FAILURE_GRACE", 0.0)
    start(group, STOPPABLE, tmp_path / "a", 0.8, 75)
    await_files(tmp_path / "a")
    start(group, "raise SystemExit(75)")
    await_end(group)
    assert exit_code(group.exits) == 75


def test_who_outlives_the_grace_is_killed(group, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "STOP_GRACE", 0.3)
    start(group, STOPPABLE, tmp_path / "a", 60, 75)
    await_files(tmp_path / "a")
    group.forward(signal.SIGTERM)
    began = time.monotonic()
    await_end(group)
    assert [exited.code for exited in group.exits] == [137]
    assert time.monotonic() - began < 30


def test_one_that_starts_after_the_stop_is_told_as_well(group, monkeypatch):
    monkeypatch.setattr(module, "START_SECONDS", 0.5)
    assert not group.forward(signal.SIGTERM)
    start(group, "import time; time.sleep(60)")
    await_end(group)
    assert [exited.code for exited in group.exits] == [143]


def test_lines_of_unbuffered_processes_stay_whole(capfd, monkeypatch):
    monkeypatch.setattr("smddp.process.output_lines.PARTIAL_SECONDS", 30.0)  # a busy machine can halt within a line
    group = ChildProcesses()
    code = "import sys, time\nfor n in range(100):\n    for part in ('begin ', 'end\\n'):\n"
    code += "        sys.stdout.write(part); time.sleep(0.0005)"
    for _ in range(3):
        command = [sys.executable, "-u", "-c", code]
        group.start(command, environ=os.environ, lines=True)
    await_end(group)
    lines = capfd.readouterr().out.splitlines()
    assert lines == ["begin end"] * 300


def test_a_progress_bar_shows_before_its_line_ends(capfd):
    group = ChildProcesses()
    code = "import sys, time; sys.stderr.write('50%'); sys.stderr.flush(); time.sleep(60)"
    group.start([sys.executable, "-c", code], environ=os.environ, lines=True)
    deadline = time.monotonic() + 20
    seen = ""
    while "50%" not in seen:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        seen += capfd.readouterr().err
    group.kill()


@pytest.fixture
def terminal(monkeypatch):
    """The other end of a terminal of 77 columns, in place of this process's streams."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 77, 0, 0))
    for name in ("STDOUT", "STDERR"):
        monkeypatch.setattr(output_lines, name, theirs)
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_on_a_terminal_a_process_has_one_of_its_own_and_leaves_its_last_words(terminal):
    group = ChildProcesses()
    code = "import os, sys\nprint(os.isatty(1), os.isatty(2), os.get_terminal_size().columns, file=sys.stderr)\n"
    code += "print('out')\nos.write(2, b'10 %\\r20 %\\rthe last words')\nos.abort()"
    group.start([sys.executable, "-c", code], environ=os.environ, lines=True)
    await_end(group)
    [exited] = group.exits
    assert (exited.code, exited.tail) == (134, "True True 77\nout\nthe last words")
    assert read_until(terminal[0], b"the last words") == b"True True 77\r\nout\r\n10 %\r20 %\rthe last words"


def test_a_process_sees_that_its_terminal_has_another_size(terminal):
    group = ChildProcesses()
    code = "import os, time\nwhile os.get_terminal_size().columns != 50:\n    print('.', flush=True); time.sleep(0.01)"
    group.start([sys.executable, "-c", code], environ=os.environ, lines=True)
    assert os.read(terminal[0], 1)
    fcntl.ioctl(terminal[1], termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    await_end(group)
    assert [exited.code for exited in group.exits] == [0]


def test_without_a_pseudoterminal_the_streams_are_inherited(terminal, monkeypatch):
    def refuse():
        raise OSError("out of pty devices")

    monkeypatch.setattr(os, "openpty", refuse)
    group = ChildProcesses()
    group.start([sys.executable, "-c", "print('out')"], environ=os.environ, lines=True)
    await_end(group)
    assert [(exited.code, exited.tail) for exited in group.exits] == [(0, None)]
    assert read_until(terminal[0], b"\n") == b"out\r\n"


def test_processes_that_outlive_sigkill_are_named_while_they_are_waited_for(group, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "_KILLED_SECONDS", 0.1)
    code = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)"
    process = group.start([sys.executable, "-c", code, str(tmp_path / "told")], environ=os.environ)
    warn = module.logger.warning

    def warn_and_release(*words):
        warn(*words)
        (tmp_path / "told").touch()

    with monkeypatch.context() as kernel:
        kernel.setattr(group, "_signal", lambda _signum: None)  # as the kernel, while a disk does not answer
        kernel.setattr(module.logger, "warning", warn_and_release)
        group.kill()
    assert process.returncode == 0
    assert f"after SIGKILL: process {process.pid}." in caplog.text


def test_a_process_whose_output_is_still_copied_is_not_said_to_run(group, monkeypatch, caplog):
    """Nobody reads what is behind the copy, such as a pager."""
    monkeypatch.setattr(module, "_KILLED_SECONDS", 0.1)
    goes_on = threading.Event()
    monkeypatch.setattr(module.OutputCopy, "finish", lambda _: goes_on.wait(60))
    process = group.start([sys.executable, "-c", ""], environ=os.environ, lines=True)
    while process.poll() is None:
        time.sleep(0.01)
    threading.Timer(0.5, goes_on.set).start()
    group.kill()
    assert "Still running" not in caplog.text
