"""The demos of PyTorch's DDP tutorial: a toy model replicated, checkpointed, and split over two devices.

    python ddp_tutorial.py                                           one process
    smddp run --processes-per-node 2 ddp_tutorial.py                 two on this machine
    smddp run --processes-per-node 2 ddp_tutorial.py --demo checkpoint
    torchrun --nproc-per-node 2 ddp_tutorial.py --demo model_parallel
    srun --ntasks 2 python ddp_tutorial.py --demo basic
    Estimator(entry_point="ddp_tutorial.py", source_dir="entrypoints", distribution="torchrun", ...)

The demos are plain PyTorch, apart from the Checkpointer. ``smddp.run`` reads ``--demo`` from the command line or from a
job's hyperparameters, and joins the ranks of any launcher. On GPUs ``model_parallel`` needs two of them for each rank
(SMDDP_GPUS_PER_RANK=2); without GPUs both halves are on the CPU.
"""

import logging
import os
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import smddp

logger = logging.getLogger(__name__)


@dataclass
class Config:
    """The hyperparameters."""

    demo: Literal["basic", "checkpoint", "model_parallel", "all"] = "all"
    steps: int = 20
    lr: float = 0.05


def main(config: Config, job: smddp.Job) -> None:
    """Run one demo, or all of them, on one rank."""
    demos = {"basic": basic, "checkpoint": checkpoint, "model_parallel": model_parallel}
    for name in demos if config.demo == "all" else [config.demo]:
        first, last = demos[name](config, job)
        if job.cluster.is_main:
            logger.info("demo=%s ranks=%d first_loss=%.4f last_loss=%.4f", name, job.cluster.world_size, first, last)


class ToyModel(nn.Module):
    """Two layers, on one device or one on each of two devices."""

    def __init__(self, first: torch.device, second: torch.device) -> None:
        super().__init__()
        self.net1 = nn.Linear(10, 10).to(first)
        self.net2 = nn.Linear(10, 5).to(second)
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        """Take numbers of (N, 10), return (N, 5) on the second device."""
        return self.net2(torch.relu(self.net1(x.to(self.first))).to(self.second))


def basic(config: Config, job: smddp.Job) -> tuple[float, float]:
    """Train with DDP, which averages the gradients: every rank takes the same step, on its own part of the data."""
    device = own_device()
    model = ToyModel(device, device)
    replica = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    losses = train(replica, device, config, job)
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    others = [torch.empty_like(weights) for _ in range(job.cluster.world_size)]
    dist.all_gather(others, weights)
    assert all(torch.equal(weights, other) for other in others), "the ranks have come apart"
    return losses


def checkpoint(config: Config, job: smddp.Job) -> tuple[float, float]:
    """Save half way, clear the weights, and continue from the checkpoint.

    In the tutorial rank 0 writes a temporary file that all ranks read after a barrier. With a Checkpointer the ranks
    share the writing, every byte is verified on loading, and a checkpoint is committed completely or not at all, in a
    directory or in S3.
    """
    device = own_device()
    model = ToyModel(device, device)
    replica = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    with smddp.Checkpointer(job.part("tutorial").checkpoint_location, {"model": model}) as checkpointer:
        found = checkpointer.load()  # a checkpoint of an earlier run in this directory, or None
        steps = config.steps + (found.step if found else 0)
        first, _ = train(replica, device, config, job)
        learned = [weight.detach().clone() for weight in model.parameters()]
        checkpointer.save(steps)
        checkpointer.wait()
        with torch.no_grad():
            for weight in model.parameters():
                weight.zero_()
        checkpointer.load()
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), learned, strict=True)), "something was lost"
    return first, train(replica, device, config, job)[1]


def model_parallel(config: Config, job: smddp.Job) -> tuple[float, float]:
    """Train a model on two devices: DDP gets no ``device_ids``, and the model moves its input."""
    first = own_device()
    second = first
    if first.type == "cuda":
        if os.environ.get("SMDDP_GPUS_PER_RANK") != "2":
            raise ValueError("two GPUs a rank are needed: set SMDDP_GPUS_PER_RANK=2, and start half as many ranks")
        second = torch.device("cuda", first.index + 1)
    return train(DistributedDataParallel(ToyModel(first, second)), second, config, job)


def train(model: nn.Module, device: torch.device, config: Config, job: smddp.Job) -> tuple[float, float]:
    """Train on the rank's own noise with a fixed layer's outputs as targets; return the first and the last loss."""
    torch.manual_seed(1)
    teacher = nn.Linear(10, 5).to(device)
    torch.manual_seed(100 + job.cluster.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    losses = []
    for _ in range(config.steps):
        inputs = torch.randn(20, 10, device=device)
        loss = nn.functional.mse_loss(model(inputs), teacher(inputs).detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses[0], losses[-1]


def own_device() -> torch.device:
    """Return the GPU that this rank got when it joined, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


if __name__ == "__main__":
    torch.manual_seed(0)  # for the model's weights; DDP broadcasts rank 0's anyway
    smddp.run(main)
