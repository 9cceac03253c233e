"""One life of a small training run that tells everything it does, so that lives can be compared bit for bit.

It is a loop of one's own around `smddp.Checkpointer`. Everything random that there is matters to it: dropout draws from
torch, the inputs are blurred by numpy, and python's generator drops some of them.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from smddp.checkpoint import Checkpointer, Retention
from smddp.checkpoint.run_state import capture_random_state
from smddp.cluster import Cluster
from smddp.data import ElasticSampler
from smddp.distributed import join, leave
from tests.torture.children import Journal
from tests.torture.digest import digest

SAMPLES = 244
GLOBAL_BATCH = 8
EPOCHS = 8
STEPS = EPOCHS * (SAMPLES // GLOBAL_BATCH)
SAVE_EVERY = 3


def live(directory: Path, *, sharded: bool = False) -> None:
    """Train to the end, as this rank of the cluster in the environment, from the newest checkpoint on.

    Several ranks have copies of the model, or divide it if it is sharded.

    The journal: ``resumed STEP STATE`` begins each life; ``step STEP LOSS SAMPLES``, ``saving STEP STATE`` and
    ``durable STEP`` follow; ``end STEP STATE`` is the last line of a life that came to the end.
    """
    cluster = Cluster.detect()
    journal = Journal(directory / f"journal-{cluster.rank}")
    _seed(cluster.rank)
    inputs = torch.randn(SAMPLES, 12, generator=torch.Generator().manual_seed(1))
    module = _network()
    model: nn.Module = module
    if cluster.world_size > 1:
        join(cluster)
        if sharded:
            fully_shard(module)
        else:
            model = DistributedDataParallel(module)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    sampler = ElasticSampler(
        SAMPLES, global_batch=GLOBAL_BATCH, rank=cluster.rank, world_size=cluster.world_size, seed=5
    )
    checkpointer = Checkpointer(
        directory / "checkpoints",
        {"model": module, "optimizer": optimizer, "sampler": sampler},
        keep=Retention(last=2, best=1, metric="loss", mode="min"),
    )

    def state() -> str:
        return digest(module.state_dict(), optimizer.state_dict(), capture_random_state())

    found = checkpointer.load()
    step = found.step if found is not None else 0
    journal.write("resumed", step, state())

    durable = step
    for epoch in range(sampler.epoch, EPOCHS):
        sampler.start_epoch(epoch)
        for samples in sampler:
            loss = nn.functional.mse_loss(model(_blurred(inputs[samples])), inputs[samples].sum(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sampler.advance()
            step += 1
            journal.write("step", step, loss.item().hex(), ",".join(map(str, samples)))
            checkpointer.check()
            if step % SAVE_EVERY == 0:
                journal.write("saving", step, state())
                checkpointer.save(step, epoch=epoch, metrics={"loss": loss.item()})
            if (report := checkpointer.last_report) is not None and report.step > durable:
                durable = report.step
                journal.write("durable", durable)
    checkpointer.wait()
    checkpointer.close()
    journal.write("end", step, state())
    del model
    leave()


def _network() -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    network = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    for weight in network.parameters():
        nn.init.uniform_(weight, -0.2, 0.2, generator=generator)
    return network


def _blurred(inputs: Tensor) -> Tensor:
    noise = torch.from_numpy(np.random.normal(scale=0.1, size=inputs.shape)).float()
    return inputs + (noise if random.random() < 0.8 else 0.0)


def _seed(rank: int) -> None:
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
