"""Real ranks: small programs run as two processes that meet on a free port of 127.0.0.1."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from smddp.cluster import Cluster
from tests.fork_python import ForkPython


class Ended(NamedTuple):
    code: int
    printed: str
    logged: str


@pytest.fixture
def port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def make_cluster(port: int) -> Callable[[int, int], Cluster]:
    """A cluster of one host; its master is on a free port."""

    def make(rank: int, world_size: int) -> Cluster:
        return Cluster(
            rank=rank,
            local_rank=rank,
            world_size=world_size,
            local_world_size=world_size,
            node_rank=0,
            node_count=1,
            hosts=("localhost",),
            master_addr="127.0.0.1",
            master_port=port,
            launcher="torchrun",
        )

    return make


@pytest.fixture
def run_ranks(port: int, tmp_path: Path) -> Callable[..., list[Ended]]:
    """Runs a program's text as the two ranks of a job, each with an environment of its own besides."""

    def run(program: str, environs: Sequence[Mapping[str, str]] = ({}, {})) -> list[Ended]:
        script = tmp_path / "program.py"
        script.write_text(program)
        ranks = []
        for rank, own in enumerate(environs):
            place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
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


@pytest.fixture(autouse=True)
def _fork_python(fork_python: ForkPython) -> None:
    """All processes here begin with torch imported."""
