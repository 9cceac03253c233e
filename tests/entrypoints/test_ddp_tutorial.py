"""The demos of PyTorch's tutorial, by ``smddp run``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ENTRYPOINTS = Path(__file__).parents[2] / "entrypoints"
LINE = re.compile(r"demo=(\w+) ranks=(\d) first_loss=([0-9.]+) last_loss=([0-9.]+)")


def check(printed: str, demos: list[str], ranks: str) -> None:
    found = LINE.findall(printed)
    assert [(demo, count) for demo, count, _, _ in found] == [(demo, ranks) for demo in demos], printed
    assert all(float(last) < float(first) for _, _, first, last in found)


@pytest.mark.slow
def test_each_demo_learns_on_two_ranks_and_again_in_the_same_directory(tmp_path):
    command = [sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", "2", "--run-dir", "run"]
    for _ in range(2):
        done = subprocess.run(
            [*command, ENTRYPOINTS / "ddp_tutorial.py"], cwd=tmp_path, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stderr
        check(done.stderr, ["basic", "checkpoint", "model_parallel"], "2")
