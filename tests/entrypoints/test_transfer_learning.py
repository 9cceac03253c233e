"""Transfer learning: weights that are really transferred, frozen and then trained, averaged, and the best one kept."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from smddp.checkpoint import find_best, load_weights
from smddp.distributed import leave
from smddp.job import Job
from tests.entrypoints.channels import ENTRYPOINTS, write_fashion_mnist
from tests.entrypoints.conftest import load

SCRIPT = ENTRYPOINTS / "transfer_learning.py"


@pytest.fixture(scope="module")
def transfer() -> ModuleType:
    return load(SCRIPT)


@pytest.fixture
def weights(transfer: ModuleType, tmp_path: Path) -> dict[str, torch.Tensor]:
    """Of a network for five classes, as a state_dict in the channel of weights."""
    torch.manual_seed(7)
    network = transfer.network("resnet18")
    network.fc = torch.nn.Linear(network.fc.in_features, 5)
    (tmp_path / "weights").mkdir()
    torch.save(network.state_dict(), tmp_path / "weights" / "resnet18-of-five.pth")
    return network.state_dict()


def model_of(run_dir: Path) -> dict[str, torch.Tensor]:
    return torch.load(run_dir / "model" / "model.pt", weights_only=True)


def differ(ours: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> set[str]:
    return {
        name for name in ours if ours[name].shape != others[name].shape or not torch.equal(ours[name], others[name])
    }


@pytest.mark.slow
def test_the_last_layer_learns_alone_then_all_and_the_best_average_is_the_model(transfer, weights, tmp_path):
    write_fashion_mnist(tmp_path / "training", train=16, test=6)
    environ = {
        "SMDDP_RUN_DIR": str(tmp_path / "run"),
        "SM_CHANNEL_TRAINING": str(tmp_path / "training"),
        "SM_CHANNEL_WEIGHTS": str(tmp_path / "weights"),
    }
    two_ranks = [sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", "2", SCRIPT]
    done = subprocess.run(
        [*two_ranks, "--epochs", "1", "--batch-size", "8", "--workers", "0"],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert "misshapen (2): fc.weight (float32 [5, 512] there, float32 [10, 512] here)" in done.stderr
    assert differ(model_of(tmp_path / "run"), weights) == {"fc.weight", "fc.bias"}

    try:
        transfer.main(transfer.Config(epochs=2, batch_size=8, workers=0), Job.detect(environ))  # goes on, on one rank
    finally:
        leave()
    newest, best = transfer.network("resnet18"), transfer.network("resnet18")
    load_weights(newest, tmp_path / "run" / "checkpoints" / "step-000000000004", part="ema")
    as_it_was = weights.keys() - differ(newest.state_dict(), weights)
    assert all(name.endswith("num_batches_tracked") for name in as_it_was), as_it_was
    load_weights(best, find_best(tmp_path / "run" / "checkpoints", "accuracy").path, part="ema")
    assert differ(model_of(tmp_path / "run"), best.state_dict()) == set()


def test_without_weights_all_layers_learn_from_the_start(transfer, caplog):
    assert not transfer.take_weights(transfer.network("resnet18"), None)
    assert "nothing is transferred, and all layers learn from the start" in caplog.text


@pytest.mark.slow
def test_weights_of_another_model_are_refused(transfer, weights, tmp_path):
    with pytest.raises(
        ValueError, match=r"resnet18-of-five\.pth holds .* of another model: 188 do not fit, such as layer1\.0\.bn3"
    ):
        transfer.take_weights(transfer.network("resnet50"), tmp_path / "weights")


@pytest.mark.slow
def test_a_model_with_another_last_layer_is_refused(transfer):
    with pytest.raises(ValueError, match="model='vgg11' is none of torchvision's whose last layer is fc: take one of"):
        transfer.network("vgg11")


def test_packed_files_are_read_as_debian_has_them(transfer, tmp_path):
    write_fashion_mnist(tmp_path / "plain", train=4, test=2)
    (tmp_path / "packed").mkdir()
    for file in (tmp_path / "plain" / "FashionMNIST" / "raw").iterdir():
        (tmp_path / "packed" / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    _, plain = transfer.datasets(tmp_path / "plain", 28)
    _, packed = transfer.datasets(tmp_path / "packed", 28)
    assert len(packed) == 2
    assert torch.equal(packed[1][0], plain[1][0])
    assert packed[1][0].shape == (3, 28, 28)


def test_missing_images_are_told(transfer, tmp_path):
    with pytest.raises(ValueError, match="does not hold the four idx files of Fashion-MNIST, whole: install"):
        transfer.datasets(tmp_path, 28)
