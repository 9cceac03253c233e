"""A stop or Ctrl-C while a rank waits for the others ends it at once, with a line and the exit code of a stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ports import free_ports

SCRIPT = """
import smddp
from smddp.distributed import store

end = store._end_if_stopped

def told():
    print("waiting", flush=True)
    end()

store._end_if_stopped = told
if __name__ == "__main__":
    smddp.run(lambda: None)
"""


def start(directory: Path, rank: int, port: int) -> subprocess.Popen[str]:
    (directory / "train.py").write_text(SCRIPT)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3, "SMDDP_TIMEOUT": 60}
    environ = {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    return subprocess.Popen(
        [sys.executable, "train.py"],
        env={**os.environ, **{name: str(value) for name, value in environ.items()}},
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("fork_python")
@pytest.mark.parametrize(
    ("signum", "code", "said"),
    [
        (signal.SIGTERM, 75, "told to stop before all ranks had joined"),
        (signal.SIGINT, 130, "interrupted before all ranks had joined"),
    ],
)
def test_a_signal_ends_each_rank_that_waits(tmp_path: Path, signum: int, code: int, said: str) -> None:
    """Rank 0 waits for the others, rank 1 for rank 2, and the last one for a rank 0 at another port."""
    port, other = free_ports(2)
    ranks = [start(tmp_path, 0, port), start(tmp_path, 1, port), start(tmp_path, 1, other)]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stderr is not None
            assert rank.stdout.readline() == "waiting\n", rank.stderr.read()
        time.sleep(1.0)  # rank 1 has reached rank 0
        for rank in reversed(ranks):
            began = time.monotonic()
            rank.send_signal(signum)
            _, error = rank.communicate(timeout=60)
            assert rank.returncode == code, error
            assert time.monotonic() - began < 20.0  # about one second, on a quiet machine; SMDDP_TIMEOUT is a minute
            assert f"{said}, exit code {code}: nothing was saved" in error
            assert "Traceback" not in error
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
