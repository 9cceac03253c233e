"""Prints the samples of each step, and ends itself as kill -9 does where it is told to."""

import os
import signal
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import Dataset

import smddp

EVERY = 3


@dataclass
class Config:
    die_at: int | None = None  # the step after which the last rank is killed


class Noisy(Dataset):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), index / 60 - 1) + 0.1 * torch.rand(4), index


def await_save(job: smddp.Job, step: int) -> None:
    """Wait until the last save, in the background, is whole: the manifest is written last."""
    manifest = job.checkpoint_dir / f"step-{step:012}" / "manifest.json"
    deadline = time.monotonic() + 60
    while not manifest.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{manifest} was not written within 60 s")
        time.sleep(0.02)


def main(config: Config, job: smddp.Job) -> None:
    torch.manual_seed(job.cluster.rank)
    model = nn.Sequential(nn.Linear(4, 33), nn.Tanh(), nn.Dropout(0.1), nn.Linear(33, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = smddp.Trainer(job, model, optimizer, checkpoints=smddp.CheckpointPolicy(every=EVERY))
    loader = trainer.loader(Noisy(), batch_size=12, num_workers=1)
    for _ in trainer.epochs(2):
        for values, samples in trainer.batches(loader):
            print(f"step {trainer.steps} takes {samples.tolist()}", flush=True)
            trainer.step((trainer.model(values) - values).square().mean())
            if trainer.steps == config.die_at:
                if trainer.is_main:  # the manifest is on its host alone
                    await_save(job, config.die_at // EVERY * EVERY)
                trainer.sum(0)  # no rank goes on before rank 0 has seen the manifest
                if job.cluster.rank == job.cluster.world_size - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
    if trainer.is_main:
        weights = [value.hex() for weight in model.parameters() for value in weight.flatten().tolist()]
        print(f"weights {weights}")  # in one piece: the log comes through the same pipe


smddp.run(main)
