"""Trains on the shards of a channel of which each host has a part of its own, and prints what it takes."""

from dataclasses import dataclass

import torch

import smddp


@dataclass
class Config:
    epochs: int = 1


def main(config: Config, job: smddp.Job) -> None:
    model = torch.nn.Linear(1, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    shards = smddp.ShardedDataset(job.channels["training"], decode=lambda record: float(record["n"]))
    loader = trainer.loader(shards, batch_size=8, sharded_by_host=job.inputs["training"].sharded_by_host)
    for epoch in trainer.epochs(config.epochs):
        taken = []
        for numbers in trainer.batches(loader):
            taken += numbers.long().tolist()
            trainer.step(trainer.model(numbers.float()[:, None]).square().mean())
        print(f"epoch {epoch} rank {job.cluster.rank} takes {taken}", flush=True)


smddp.run(main)
