"""The trained model in the job's model directory, which SageMaker packs into model.tar.gz.

Two files of the same weights on the CPU: ``model.safetensors``, which cannot run code when it is loaded, and
``model.pt``, a state dict for ``torch.load(..., weights_only=True)``. Neither holds optimizer state: to go on
training, use a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from torch import nn


def write_model(model: nn.Module, directory: Path) -> None:
    """Writes both files, each whole or not at all.

    Args:
        model: The plain model, not one that is wrapped for training.
        directory: Where to; it is made if it is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _write_whole(directory / "model.safetensors", lambda path: safetensors.torch.save_model(model, str(path)))
    weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    _write_whole(directory / "model.pt", lambda path: torch.save(weights, path))


def _write_whole(path: Path, write: Callable[[Path], None]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
