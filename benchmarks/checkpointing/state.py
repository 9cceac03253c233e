"""The state that every contender saves, and what the machine itself needs to move its bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]

BLOCKS = 14
"""Of a transformer, with four tensors of weights each: 168 tensors with Adam's moments, and its 56 step counters."""


def make_state(megabytes: float) -> State:
    """Return a transformer's weights, and Adam's state of them."""
    width = max(1, round((megabytes * 1e6 / (BLOCKS * 8 * 3 * 4)) ** 0.5))
    shapes = {"up.weight": (4 * width, width), "up.bias": (4 * width,)}
    shapes |= {"down.weight": (width, 4 * width), "down.bias": (width,)}
    model = {f"blocks.{block}.{name}": torch.rand(shape) for block in range(BLOCKS) for name, shape in shapes.items()}
    moments = [
        {"step": torch.tensor(1.0), "exp_avg": torch.rand_like(weight), "exp_avg_sq": torch.rand_like(weight)}
        for weight in model.values()
    ]
    group = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "params": list(range(len(moments)))}
    return {"model": model, "optimizer": {"state": dict(enumerate(moments)), "param_groups": [group]}}


def blank_like(state: Any) -> Any:
    """Return the same state in memory of its own that has been touched, all zeros."""
    if isinstance(state, Tensor):
        return torch.zeros_like(state)
    if isinstance(state, dict):
        return {key: blank_like(value) for key, value in state.items()}
    return state


def tensors_of(state: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from tensors_of(value, f"{name}.{key}" if name else str(key))


def size_of(state: State) -> int:
    """Bytes."""
    return sum(tensor.nbytes for _, tensor in tensors_of(state))


def copy(state: State, target: State, threads: int) -> None:
    """Copy all tensors into buffers that are there, and touched, already: the first yardstick, memcpy."""
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    for (_, source), (_, buffer) in zip(tensors_of(state), tensors_of(target), strict=True):
        buffer.copy_(source)
    torch.set_num_threads(usual)


def write_raw(state: State, path: Path) -> None:
    """Write all bytes into one new file, from one thread, and fsync: the second yardstick, the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    for _, tensor in tensors_of(state):
        rest = bytes_of(tensor)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)
    os.close(descriptor)


def bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
