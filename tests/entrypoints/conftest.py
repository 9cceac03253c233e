"""The entry point as a module, and channels for it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from tests.entrypoints.channels import ENTRYPOINTS, write_cifar10
from tests.fork_python import ForkPython

SCRIPT = ENTRYPOINTS / "image_classification.py"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tests that run side by side must not fight for the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def script() -> Path:
    return SCRIPT


def load(script: Path) -> ModuleType:
    """An entry point as a module."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def entry_point() -> ModuleType:
    return load(SCRIPT)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scikit-learn's digits as a channel: 1437 images to train on, 360 to test with."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    train, test = order[:1437], order[1437:]
    channel = tmp_path_factory.mktemp("digits")
    images = bunch.images.astype(np.uint8)
    np.savez(
        channel / "digits.npz",
        train_images=images[train],
        train_labels=bunch.target[train],
        test_images=images[test],
        test_labels=bunch.target[test],
    )
    return channel


@pytest.fixture(autouse=True)
def _fork_python(fork_python: ForkPython) -> None:
    """All processes here begin with torch imported."""


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10's Python version with few images; torchvision is told the MD5 sums of these files."""
    from torchvision.datasets import CIFAR10

    lists = write_cifar10(tmp_path / "channel", train=[[n, (n + 1) % 10] for n in range(1, 6)], test=[7, 8, 9])
    for name, value in zip(("train_list", "test_list", "meta"), lists, strict=True):
        monkeypatch.setattr(CIFAR10, name, value)
    return tmp_path / "channel"
