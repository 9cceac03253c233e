"""The job of `tests.torture.elastic`: a user's script with `smddp.Trainer`, in one of several layouts.

It computes in double precision: another layout adds the same numbers in another order, and AdamW divides a gradient by
its size, but not what is far below its ``eps``. So rounding stays below 1e-9, and a difference of 1e-5 is a defect.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import smddp
from smddp.job import Job
from tests.torture.children import Journal
from tests.torture.digest import digest
from tests.torture.layout import Layout

SAMPLES = 240
GLOBAL_BATCH = 12
STEPS_AN_EPOCH = SAMPLES // GLOBAL_BATCH


REPLICATED = tuple(Layout(ranks=ranks) for ranks in (1, 2, 3, 4))
RESHARDED = (
    *(Layout(ranks=ranks) for ranks in (1, 2, 3)),
    *(Layout(ranks=ranks, shard="all") for ranks in (2, 3, 4)),
    Layout(ranks=4, shard=2),
    *(Layout(ranks=ranks, tensor=2) for ranks in (2, 4)),
)


class Block(nn.Module):
    """A layer that is gathered alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 2 * width + 2), nn.Linear(2 * width + 2, width)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = inputs + self.outer(torch.tanh(self.inner(self.norm(inputs))))
        return output


def compute_together(model: nn.Sequential, layout: Layout) -> None:
    """Put the model under tensor parallelism, below `fully_shard`."""
    shape = (layout.ranks // layout.tensor, layout.tensor)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
    parallelize_module(model[1], mesh["tensor"], {"inner": ColwiseParallel(), "outer": RowwiseParallel()})
    for part in (model[1], model):
        fully_shard(part, mesh=mesh["data"])


class Witness:
    """A part of each checkpoint that tells the journal what was saved."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.trainer: smddp.Trainer | None = None
        self.optimizer: torch.optim.Optimizer | None = None

    def digest(self) -> str:
        """Return a digest of all weights and moments. Collective."""
        assert self.trainer is not None
        assert self.optimizer is not None
        moments = self.optimizer.state_dict()["state"]
        return digest(self.trainer.module.state_dict(), {number: moments[number] for number in sorted(moments)})

    def state_dict(self) -> dict[str, Any]:
        """Tell, on all ranks, as the state is copied on all of them."""
        assert self.trainer is not None
        self._journal.write("saving", self.trainer.steps, self.digest())
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing was saved."""


def live(directory: Path, life: int, layout: Layout, epochs: int) -> None:
    """Train as a rank of a job.

    The journal: ``resumed STEP STATE`` begins each life; ``step STEP SAMPLES LOSS`` comes before each step, and
    ``saving STEP STATE`` before each save.
    """
    os.environ["SMDDP_RUN_DIR"] = str(directory / "run")

    def main(job: Job) -> None:
        journal = Journal(directory / f"journal-{life}-{job.cluster.rank}")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), Block(7), nn.Linear(7, 1)).double()
        if layout.tensor > 1:
            compute_together(model, layout)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        witness = Witness(journal)
        parallel: Any = smddp.DDPOptions()
        if layout.shard is not None:
            parallel = smddp.Sharded(wrap=(Block,), shard=layout.shard)
        trainer = smddp.Trainer(
            job,
            model,
            optimizer,
            precision="fp32",
            checkpoints=smddp.CheckpointPolicy(every=3, seconds=None),
            seed=9,
            state={"witness": witness},
            parallel=parallel,
        )
        witness.trainer, witness.optimizer = trainer, optimizer
        loader = trainer.loader(range(SAMPLES), batch_size=GLOBAL_BATCH)
        trainer.resume()
        journal.write("resumed", trainer.steps, witness.digest())
        for _ in trainer.epochs(epochs):
            for samples in trainer.batches(loader):
                inputs = torch.sin(samples.double().unsqueeze(1) * torch.arange(1, 6))
                loss = (trainer.model(inputs) - inputs.square().sum(dim=1, keepdim=True)).square().mean()
                taken = ",".join(map(str, samples.tolist()))
                journal.write("step", trainer.steps + 1, taken, loss.item().hex())
                trainer.step(loss)

    smddp.run(main)
