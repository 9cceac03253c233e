"""A host that another one's mpirun starts ranks on: what its line says, and stops, without ssh."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from smddp.process.process_tree import catches, started

SERVE = """
import sys
from smddp.launch import mpi_host
mpi_host.LINE, mpi_host.SSHD = "line", "./sshd"
mpi_host.refuse_loopback = lambda host: None
mpi_host.Path.mkdir = lambda *_, **__: None  # of /run/sshd, which is root's
sys.exit(mpi_host.main(["--first", "algo-1"]))
"""

RANK = """#!/bin/sh
while [ ! -e launch ]; do sleep 0.05; done
OMPI_COMM_WORLD_RANK=0 sh -c '
    sleep 0.3  # it hears nothing yet
    trap "echo told >rank; exit 0" TERM USR2
    echo up >rank
    while :; do sleep 0.05; done'
sleep 300
"""


@pytest.fixture
def host(start, tmp_path):
    """The host, whose sshd starts a rank once there is a file ``launch``; and the other end of its line."""
    (tmp_path / "sshd").write_text(RANK)
    (tmp_path / "sshd").chmod(0o700)
    return serve(start, tmp_path)


def serve(start, tmp_path):
    process = start("-c", SERVE)
    await_that((tmp_path / "line").is_fifo)
    await_that(lambda: catches(process.pid, signal.SIGUSR2))  # the last handler that it sets
    return process


def await_that(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def begin(line: Path) -> int:
    end = os.open(line, os.O_WRONLY)
    os.write(end, b"begun\n")
    return end


def test_a_stop_before_there_are_ranks_is_told_to_them_once_they_can_hear_it(host, tmp_path):
    end = begin(tmp_path / "line")
    host.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    (tmp_path / "launch").touch()
    await_that(lambda: (tmp_path / "rank").exists() and (tmp_path / "rank").read_text() == "told\n")
    os.write(end, b'75 ""\n')
    os.close(end)
    assert host.wait(timeout=30) == 75


def test_sigusr1_reaches_the_ranks_and_is_no_stop_here(host, tmp_path):
    end = begin(tmp_path / "line")
    (tmp_path / "launch").touch()
    await_that(lambda: (tmp_path / "rank").exists() and (tmp_path / "rank").read_text() == "up\n")
    host.send_signal(signal.SIGUSR2)
    await_that(lambda: (tmp_path / "rank").read_text() == "told\n")
    os.write(end, b'0 ""\n')
    os.close(end)
    assert host.wait(timeout=30) == 0


def test_what_a_rank_leaves_behind_ends_though_orted_waits_for_its_output(start, tmp_path):
    left = "import os, sys\nif os.fork(): sys.exit()\nos.setsid()\nopen('left', 'w').write(str(os.getpid()))\n"
    (tmp_path / "left.py").write_text(left + "import time; time.sleep(600)")
    (tmp_path / "sshd").write_text(f"#!/bin/sh\nOMPI_COMM_WORLD_RANK=0 {sys.executable} left.py\nexec sleep 600")
    (tmp_path / "sshd").chmod(0o700)
    host = serve(start, tmp_path)
    end = begin(tmp_path / "line")
    await_that(lambda: (tmp_path / "left").exists() and (tmp_path / "left").read_text())
    await_that(lambda: started(int((tmp_path / "left").read_text())) is None)
    os.write(end, b'0 ""\n')
    os.close(end)
    assert host.wait(timeout=30) == 0


def test_a_stop_before_the_first_host_has_come_ends_this_one(host):
    host.send_signal(signal.SIGTERM)
    assert host.wait(timeout=30) == 143


@pytest.mark.parametrize(("stop", "code"), [(True, 143), (False, 1)])
def test_a_first_host_that_ends_without_a_word_is_lost_unless_a_stop_came(host, tmp_path, stop, code):
    end = begin(tmp_path / "line")
    if stop:
        host.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    os.close(end)
    assert host.wait(timeout=30) == code
    assert ("algo-1, which runs mpirun, was lost" in host.stderr.read()) is not stop


def test_a_rank_that_failed_elsewhere_is_the_reason_here_too(start, tmp_path, monkeypatch):
    monkeypatch.setenv("SM_OUTPUT_DIR", str(tmp_path / "output"))
    (tmp_path / "output").mkdir()
    (tmp_path / "sshd").write_text("#!/bin/sh\nsleep 300\n")
    (tmp_path / "sshd").chmod(0o700)
    host = serve(start, tmp_path)
    end = begin(tmp_path / "line")
    os.write(end, b'1 "ValueError: bad (rank 1 of 2 on algo-1)\\nTraceback"\n')
    os.close(end)
    assert host.wait(timeout=30) == 1
    assert (tmp_path / "output" / "failure").read_text() == "ValueError: bad (rank 1 of 2 on algo-1)\nTraceback"
