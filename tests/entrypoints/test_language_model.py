"""The sharded decoder: it learns, and computes the same on any number of ranks, however they divide its weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from smddp.distributed import leave
from smddp.job import Job
from tests.entrypoints.channels import write_text
from tests.entrypoints.conftest import load

SCRIPT = Path(__file__).parents[2] / "entrypoints" / "language_model.py"
TINY = {
    "layers": 2,
    "heads": 2,
    "kv_heads": 1,
    "width": 16,
    "context": 8,
    "batch_size": 8,
    "warmup_steps": 2,
    "lr": 0.02,
}


@pytest.fixture(scope="module")
def decoder() -> ModuleType:
    return load(SCRIPT)


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    write_text(tmp_path / "channel")
    return tmp_path / "channel"


def train(decoder: ModuleType, channel: Path, run_dir: Path, **values: Any) -> dict[str, torch.Tensor]:
    job = Job.detect({"SMDDP_RUN_DIR": str(run_dir), "SM_CHANNEL_TRAINING": str(channel)})
    try:
        decoder.main(decoder.Config(**{**TINY, "sample_bytes": 20, **values}), job)
    finally:
        leave()
    return load_file(job.model_dir / "model.safetensors")


def test_it_learns_and_draws_a_sample(decoder, channel, tmp_path, caplog):
    caplog.set_level("INFO")
    train(decoder, channel, tmp_path / "run", steps=60, evaluate_every=20)
    losses = [float(each.getMessage().split("test_loss=")[1]) for each in caplog.records if "test_loss" in each.message]
    assert len(losses) == 3
    assert losses[-1] < 0.6 * losses[0]
    assert any(record.message.startswith("a sample") for record in caplog.records)


def test_computing_activations_again_changes_no_bit(decoder, channel, tmp_path):
    plain = train(decoder, channel, tmp_path / "plain", steps=4)
    again = train(decoder, channel, tmp_path / "again", steps=4, checkpoint_activations=True)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


@pytest.mark.slow
@pytest.mark.usefixtures("fork_python")
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 3e-3)])
def test_it_computes_the_same_on_any_number_of_ranks(channel, tmp_path, precision, tolerance):
    def run(ranks: int, shard: str) -> tuple[list[float], dict[str, torch.Tensor]]:
        directory = tmp_path / f"{ranks}-{shard}"
        values = {**TINY, "steps": 6, "evaluate_every": 2, "accumulate": 2, "ema": 0.5, "clip_norm": 0.1, "lr": 0.002}
        values |= {"precision": precision, "shard": shard, "sample_bytes": 3, "batch_size": 16}
        words = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        launcher = [
            sys.executable,
            "-m",
            "smddp.cli",
            "run",
            "--processes-per-node",
            str(ranks),
            "--run-dir",
            directory,
        ]
        told = subprocess.run(
            [*launcher, SCRIPT, *words],
            env={"SM_CHANNEL_TRAINING": str(channel), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert told.returncode == 0, told.stderr
        lines = map(json.loads, (directory / "output" / "data" / "metrics.jsonl").read_text().splitlines())
        return [line["test_loss"] for line in lines if "test_loss" in line], load_file(
            directory / "model" / "model.safetensors"
        )

    losses, weights = run(1, "all")
    assert len(losses) == 3
    for ranks, shard in (2, "none"), (2, "all"), (4, "2"):
        others, other_weights = run(ranks, shard)
        assert others == pytest.approx(losses, rel=tolerance), (ranks, shard)
        for name, weight in weights.items():
            assert torch.allclose(other_weights[name], weight, atol=10 * tolerance), (ranks, shard, name)


def test_what_does_not_fit_is_told(decoder, channel, tmp_path):
    with pytest.raises(ValueError, match="heads by kv_heads=3"):
        train(decoder, channel, tmp_path, kv_heads=3)
    with pytest.raises(ValueError, match=r"the text has \d+ bytes: give 16000, two batches"):
        train(decoder, channel, tmp_path, context=1000)
    with pytest.raises(ValueError, match="shard='node': give all, host, none, or a number"):
        train(decoder, channel, tmp_path, shard="node")
