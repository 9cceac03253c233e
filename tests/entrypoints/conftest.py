"""Small channels in the true formats, and the entry point as a module."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from tests.fork_python import ForkPython

SCRIPT = Path(__file__).parents[2] / "entrypoints" / "image_classification.py"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tests that run side by side must not fight for the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def script() -> Path:
    return SCRIPT


@pytest.fixture(scope="session")
def entry_point() -> ModuleType:
    spec = importlib.util.spec_from_file_location("image_classification", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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
