"""Small channels in the true formats, and the entry point as a module."""

import hashlib
import importlib.util
import pickle
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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


def write_fashion_mnist(channel: Path, *, train: int, test: int) -> None:
    """So many images of noise, labelled 0, 1, 2, ..., as torchvision keeps them."""
    raw = channel / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for prefix, count in (("train", train), ("t10k", test)):
        write_idx(raw / f"{prefix}-images-idx3-ubyte", generator.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        write_idx(raw / f"{prefix}-labels-idx1-ubyte", np.arange(count, dtype=np.uint8) % 10)


def write_idx(path: Path, array: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """The format of the MNIST family: magic number 0x08 and dimensions, big-endian, then bytes."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.tobytes())


@pytest.fixture(autouse=True)
def _fork_python(fork_python: ForkPython) -> None:
    """All processes here begin with torch imported."""


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10's Python version with few images; torchvision is told the MD5 sums of these files."""
    from torchvision.datasets import CIFAR10

    folder = tmp_path / "channel" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)

    def write(name: str, content: object) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    def batch(labels: list[int]) -> dict[str, object]:
        return {"data": generator.integers(0, 256, (len(labels), 3072), dtype=np.uint8), "labels": labels}

    monkeypatch.setattr(CIFAR10, "train_list", [write(f"data_batch_{n}", batch([n, n + 1])) for n in range(1, 6)])
    monkeypatch.setattr(CIFAR10, "test_list", [write("test_batch", batch([7, 8, 9]))])
    _, md5 = write("batches.meta", {"label_names": [f"class {n}" for n in range(10)]})
    monkeypatch.setattr(CIFAR10, "meta", {"filename": "batches.meta", "key": "label_names", "md5": md5})
    return tmp_path / "channel"
