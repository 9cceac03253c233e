"""The small GPT: it learns, goes on to the same bits, and weighs its batches by their letters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from smddp.distributed import leave
from smddp.job import Job
from tests.entrypoints.channels import write_text
from tests.entrypoints.conftest import load

SCRIPT = Path(__file__).parents[2] / "entrypoints" / "char_gpt.py"
TINY = {"layers": 1, "heads": 2, "width": 16, "block": 16, "batch_size": 8, "warmup_steps": 2, "lr": 0.02}


@pytest.fixture(scope="module")
def gpt() -> ModuleType:
    return load(SCRIPT)


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    write_text(tmp_path / "channel")
    return tmp_path / "channel"


def train(gpt: ModuleType, channel: Path, run_dir: Path, **values: Any) -> dict[str, torch.Tensor]:
    job = Job.detect({"SMDDP_RUN_DIR": str(run_dir), "SM_CHANNEL_TRAINING": str(channel)})
    try:
        gpt.main(gpt.Config(**{**TINY, "sample_letters": 20, **values}), job)
    finally:
        leave()
    return torch.load(job.model_dir / "model.pt", weights_only=True)


def test_learns_and_draws_a_sample(gpt, channel, tmp_path, caplog):
    caplog.set_level("INFO")
    train(gpt, channel, tmp_path / "run", steps=60, evaluate_every=20)
    losses = [
        float(record.getMessage().split("test_loss=")[1]) for record in caplog.records if "test_loss" in record.message
    ]
    assert len(losses) == 3
    assert losses[-1] < 0.8 * losses[0]
    (drawn,) = [record.getMessage() for record in caplog.records if record.message.startswith("a sample")]
    assert len(drawn.split("\n", 1)[1]) == 20


def test_computing_activations_again_changes_no_bit(gpt, channel, tmp_path):
    plain = train(gpt, channel, tmp_path / "plain", steps=4)
    again = train(gpt, channel, tmp_path / "again", steps=4, checkpoint_activations=True)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_a_padded_batch_has_the_loss_of_its_letters_alone(gpt, channel):
    documents = gpt.read_documents(channel)
    letters = sorted(set("".join(documents)))
    pieces = gpt.Pieces(["the quick", "fox"], letters, block=16)
    torch.manual_seed(0)
    model = gpt.GPT(gpt.Config(**TINY), len(letters))
    inputs, targets = gpt.pad([pieces[0], pieces[1]])
    together = cross_entropy(
        model(inputs).flatten(0, 1), targets.flatten(), ignore_index=gpt.NO_TARGET, reduction="sum"
    )
    alone = sum(cross_entropy(model(piece[None, :-1])[0], piece[1:], reduction="sum") for piece in pieces)
    torch.testing.assert_close(together, alone)
    assert (targets != gpt.NO_TARGET).sum() == 10


def test_two_ranks_train_on_the_languages_own_reference(tmp_path):
    tiny = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", "2", "--run-dir", "run", SCRIPT]
    done = subprocess.run(
        [*command, *tiny, "--steps", "20", "--evaluate-every", "1000", "--accumulate", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "test_loss=" in done.stderr
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_a_channel_without_text_is_told(gpt, tmp_path):
    (tmp_path / "data.bin").touch()
    with pytest.raises(ValueError, match="has 0 text files"):
        gpt.read_documents(tmp_path)
