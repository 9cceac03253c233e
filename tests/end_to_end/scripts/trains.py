"""Trains a small model with smddp.Trainer, and waits where it is told to be interrupted."""

import time
from dataclasses import dataclass

import torch

import smddp


@dataclass
class Config:
    wait_at: int | None = None  # the step at which to wait for a stop


def main(config: Config, job: smddp.Job) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = smddp.Trainer(job, model, optimizer, log_every=10, checkpoints=smddp.CheckpointPolicy(every=50))
    loader = trainer.loader(torch.utils.data.TensorDataset(torch.ones(600, 3)), batch_size=4)
    for _ in trainer.epochs(1):
        for (inputs,) in trainer.batches(loader):
            trainer.step(trainer.model(inputs).square().mean())
            while trainer.steps == config.wait_at and not job.stopping:
                time.sleep(0.02)
    trainer.save_model()


smddp.run(main)
