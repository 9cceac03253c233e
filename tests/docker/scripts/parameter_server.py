"""A parameter server of one's own, by torch.distributed.rpc: rank 0 holds the weights, the others pull and push.

Then the same ranks train as ever, by `digits.py`, which is left as it is.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import ClassVar

import digits
import numpy as np
import torch
from torch.distributed import rpc
from torch.nn.functional import cross_entropy

import smddp

PIXELS, CLASSES = 64, 10
STEPS = 60


class Server:
    """Rank 0's weights; workers come when they like."""

    weights: ClassVar[torch.Tensor] = torch.zeros(PIXELS, CLASSES)
    lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def pull(cls) -> torch.Tensor:
        with cls.lock:
            return cls.weights.clone()

    @classmethod
    def push(cls, gradient: torch.Tensor, lr: float) -> None:
        with cls.lock:
            cls.weights -= lr * gradient


def work(rank: int, world_size: int) -> tuple[float, float]:
    """Train on every (world size - 1)-th image; the loss before and after."""
    mine = slice(rank - 1, None, world_size - 1)
    with np.load(Path(os.environ["SM_CHANNEL_TRAINING"]) / "digits.npz") as digits:
        images = torch.from_numpy(digits["train_images"][mine]).flatten(1) / 16
        labels = torch.from_numpy(digits["train_labels"][mine])
    losses = []
    for _ in range(STEPS):
        weights = rpc.rpc_sync("server", Server.pull).requires_grad_()
        loss = cross_entropy(images @ weights, labels)
        loss.backward()
        rpc.rpc_sync("server", Server.push, args=(weights.grad, 1.0))
        losses.append(loss.item())
    return losses[0], losses[-1]


def main() -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc("server" if rank == 0 else f"worker-{rank}", rank=rank, world_size=world_size)
    if rank > 0:
        first, last = work(rank, world_size)
        print(f"rank={rank} of {world_size} loss={first:.3f} -> {last:.3f}", flush=True)
        assert last < first / 2
    rpc.shutdown()
    smddp.run(digits.main)


if __name__ == "__main__":
    main()
