"""Scripts that start ranks of their own are found by their source; torchrun's agent warns of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from smddp.launch.spawn_call import find_spawn_call


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import torch.multiprocessing as mp\n\nmp.spawn(print, nprocs=2)\n", 3),
        ("from torch import multiprocessing\nmultiprocessing.spawn(print)\n", 2),
        ("from torch.multiprocessing import spawn as start\nif True:\n    start(\n        print)\n", 3),
        ("import torch\nx = torch.multiprocessing.start_processes(print)\n", 2),
        ("import torch.multiprocessing as mp\nmp.set_start_method('spawn')\n", None),
        ("import subprocess as mp\nmp.spawn(print)\n", None),
        ("def spawn():\n    pass\nspawn()\n", None),
        ("from .multiprocessing import spawn\nspawn(print)\n", None),
        ("this is no Python\n", None),
    ],
)
def test_the_call_is_found_by_whatever_name(tmp_path: Path, text: str, line: int | None) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert find_spawn_call(script) == line


def test_what_is_no_python_file_has_none(tmp_path: Path) -> None:
    assert find_spawn_call(tmp_path / "absent.py") is None
    (tmp_path / "train.sh").write_text("import torch.multiprocessing as mp; mp.spawn(print)\n")
    assert find_spawn_call(tmp_path / "train.sh") is None


def test_the_agent_warns_before_the_ranks_start(start, script, fork_python):
    path = script("import torch.multiprocessing as mp\nif rank < 0: mp.spawn(print)\nsay('up')")
    agent = start("-m", "smddp.launch.torchrun", "--nproc-per-node", "2", path)
    out, log = agent.communicate(timeout=60)
    assert (agent.returncode, out) == (0, "up\nup\n"), log
    assert len(re.findall(r"train\.py spawns ranks in line \d, and torchrun's agent starts ranks, too", log)) == 1
