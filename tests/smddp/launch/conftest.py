"""Programs in processes of their own, with deadlines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.slurm import SlurmCluster

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts this Python with some words, in ``tmp_path``; ends it with the test."""
    started: list[subprocess.Popen[str]] = []

    def start_python(*words: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parents[3]),
                "PYTHONUNBUFFERED": "1",
                # Two OpenMPI 4 that make their directory in /tmp at the same moment: one of them ends with an error.
                "OMPI_MCA_orte_tmpdir_base": str(tmp_path),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start_python
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            stream.close()  # nobody waits here for what still holds the other end


@pytest.fixture
def slurm(slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """The Slurm of all tests, on which a test leaves nothing running."""
    yield slurm
    slurm.clear()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a training script that starts with what most of them need."""

    def write(text: str) -> Path:
        path = tmp_path / "train.py"
        head = "import os, signal, sys, time\nstop = []\nsignal.signal(signal.SIGTERM, lambda *_: stop.append(1))\n"
        head += "rank = int(os.environ.get('RANK', os.environ.get('OMPI_COMM_WORLD_RANK', -1)))\n"
        head += "def say(text): sys.stdout.write(text + '\\n')  # in one piece, where mpirun mixes the ranks\n"
        head += "def wait():\n    while not stop: time.sleep(0.01)\n"
        path.write_text(head + text)
        return path

    return write
