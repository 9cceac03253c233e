"""Small channels in the true formats, and copies of the entry points that take them."""

from __future__ import annotations

import hashlib
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np

ENTRYPOINTS = Path(__file__).parents[2] / "entrypoints"
_BEFORE_MAIN = 'if __name__ == "__main__":'

Lists = tuple[list[list[str]], list[list[str]], dict[str, str]]
"""CIFAR10's train_list, test_list and meta: its files with their MD5 sums."""


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


def write_cifar10(channel: Path, *, train: list[list[int]], test: list[int]) -> Lists:
    """CIFAR-10's Python version with these labels in its five batches and in its test: each class has a colour."""
    folder = channel / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    colours = np.array([(*divmod(label, 3), label % 2) for label in range(10)], dtype=np.uint8)[:, :, None] * 64

    def write(name: str, content: object) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    def batch(labels: list[int]) -> dict[str, object]:
        noise = generator.integers(0, 64, (len(labels), 3, 1024), dtype=np.uint8)
        return {"data": (colours[labels] + noise).reshape(-1, 3072), "labels": labels}

    _, md5 = write("batches.meta", {"label_names": [f"class {n}" for n in range(10)]})
    return (
        [write(f"data_batch_{number}", batch(labels)) for number, labels in enumerate(train, start=1)],
        [write("test_batch", batch(test))],
        {"filename": "batches.meta", "key": "label_names", "md5": md5},
    )


def write_text(channel: Path) -> None:
    """Forty short documents."""
    channel.mkdir()
    for number in range(40):
        (channel / f"{number:02}.txt").write_text("the quick brown fox jumps over the lazy dog. " * (1 + number % 3))


def copy_entrypoints(directory: Path, cifar10: Lists) -> None:
    """The entry points; CIFAR-10's knows the MD5 sums of the few images that are here."""
    sums = (
        f"from torchvision.datasets import CIFAR10\n\nCIFAR10.train_list, CIFAR10.test_list, CIFAR10.meta = {cifar10!r}"
    )
    shutil.copytree(ENTRYPOINTS, directory, ignore=shutil.ignore_patterns("__pycache__"))
    script = directory / "cifar10.py"
    script.write_text(script.read_text().replace(_BEFORE_MAIN, f"{sums}\n\n\n{_BEFORE_MAIN}"))
