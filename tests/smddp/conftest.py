"""Real ranks: small programs run as the processes of one job, which meet on a free port of 127.0.0.1."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fork_python import ForkPython
from tests.ports import free_port


class Ended(NamedTuple):
    code: int
    printed: str
    logged: str


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def run_ranks(port: int, tmp_path: Path, fork_python: ForkPython) -> Callable[..., list[Ended]]:
    """Runs a program's text as the ranks of a job, two of them, each with an environment of its own besides."""

    def run(program: str, environs: Sequence[Mapping[str, str]] = ({}, {})) -> list[Ended]:
        script = tmp_path / "program.py"
        script.write_text(program)
        ranks, count = [], len(environs)
        for rank, own in enumerate(environs):
            place = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count}
            master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environ = {name: str(value) for name, value in {**place, **master, "OMP_NUM_THREADS": 1, **own}.items()}
            ranks.append(
                subprocess.Popen(
                    [sys.executable, str(script)],
                    env={**os.environ, **environ},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        try:
            outputs = [rank.communicate(timeout=100) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        return [Ended(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]

    return run
