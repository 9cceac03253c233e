"""``smddp collectives``: ranks of its own or a launcher's, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smddp.cli.app import app
from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("fork_python")


def rank(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "smddp.cli", "collectives", "--seconds", "0.001", *arguments],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.slow
def test_starts_two_ranks_where_there_is_no_launcher(tmp_path):
    done = rank(tmp_path, "--operation", "all_gather", "--size", "4KiB", "--json", "found.jsonl")
    assert done.returncode == 0, done.stderr
    (found,) = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert (found["operation"], found["ranks"], found["size"]) == ("all_gather", 2, 4096)
    assert "gloo on cpu, 2 rank(s)" in done.stdout


def test_measures_the_ranks_of_a_launcher(tmp_path):
    here = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = rank(tmp_path, "--operation", "send/recv", "--operation", "barrier", **here, **master)
    assert done.returncode == 0, done.stderr
    assert "gloo on cpu, 1 rank(s)" in done.stdout
    assert "lacks send/recv: it takes 2 ranks, and here is 1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--operation", "allreduce"], "allreduce: there is send/recv, isend/irecv, broadcast"),
        (["--size", "4MB"], "'4MB' is no size"),
        (["--size", "0"], "'0' is no size"),
        (["--size", "5GiB"], "up to 4GiB"),
        (["--json", "none/found.jsonl"], "can't be written"),
        (["--plot", "found.txt"], "ends with .png, .svg or .pdf"),
        (["--seconds", "-1"], "--seconds"),
    ],
)
def test_bad_input_is_told_before_a_rank_starts(arguments, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["collectives", *arguments], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert told in done.output
