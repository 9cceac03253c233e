"""The article's CIFAR-10: trained in every precision a CPU has, and its command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from smddp.distributed import leave
from smddp.job import Job
from tests.entrypoints.conftest import load

SCRIPT = Path(__file__).parents[2] / "entrypoints" / "cifar10.py"


@pytest.fixture(scope="module")
def article() -> ModuleType:
    return load(SCRIPT)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "O1", "O2", "O3"])
def test_trains_in_each_precision(precision, article, cifar10, tmp_path):
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run"), "SM_CHANNEL_TRAINING": str(cifar10)})
    try:
        article.main(article.Config(epochs=1, batch_size=5, precision=precision), job)
    finally:
        leave()
    weights = torch.load(job.model_dir / "model.pt", weights_only=True)
    assert {weight.dtype for weight in weights.values()} == {torch.float16 if precision == "O3" else torch.float32}
    assert all(weight.isfinite().all() for weight in weights.values())


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (
            ["--nodes", "1", "--gpus", "2"],
            {"nodes": 1, "processes_per_node": 2, "node_rank": None, "master_port": None},
        ),
        (
            ["-n", "2", "-g", "4", "-nr", "1"],
            {"nodes": 2, "processes_per_node": 4, "node_rank": 1, "master_port": 29501},
        ),
    ],
)
def test_the_articles_command_line_starts_the_ranks(arguments, options, article, monkeypatch):
    asked = {}

    def run_local(script, rest, **given):
        asked.update(given, script=script, rest=rest)
        return 3

    monkeypatch.setattr("smddp.launch.local.run_local", run_local)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29501")
    monkeypatch.setattr(sys, "argv", ["cifar10.py"])
    assert article.start_ranks([*arguments, "--epochs", "5"]) == 3
    assert options.items() <= asked.items()
    assert asked["rest"] == ["--epochs", "5"]


def test_without_options_this_process_trains(article, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["cifar10.py"])
    assert article.start_ranks(["--epochs", "5"]) is None
    assert sys.argv[1:] == ["--epochs", "5"]


def test_a_launchers_ranks_start_no_others(article, monkeypatch):
    for name, value in {"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29501")
    monkeypatch.setattr(sys, "argv", ["cifar10.py"])
    assert article.start_ranks(["--nodes", "1", "--gpus", "2", "--epochs", "5"]) is None
    assert sys.argv[1:] == ["--epochs", "5"]


def test_missing_data_is_told_by_both_ranks_that_this_file_starts(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--nodes", "1", "--gpus", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 1
    assert "data does not hold cifar-10-batches-py/, whole: unpack cifar-10-python.tar.gz there" in done.stderr
