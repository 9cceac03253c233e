"""Trains a small network on digits, and says what it ran on: one script for every distribution, unchanged."""

import json
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import without_compiler  # noqa: F401 - two seconds a rank
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import smddp


@dataclass
class Config:
    epochs: int = 2
    pause: float = 0.0  # seconds after each step, for whoever wants to come in between, until the job was resumed


def main(config: Config, job: smddp.Job) -> None:
    torch.manual_seed(job.cluster.rank)
    with np.load(job.channels["training"] / "digits.npz") as digits:
        images = torch.from_numpy(digits["train_images"]).flatten(1) / 16
        labels = torch.from_numpy(digits["train_labels"])
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), log_every=1)
    data = TensorDataset(images, labels)
    loader = trainer.loader(data, batch_size=20, tail="short")
    pause = 0.0 if trainer.resume() else config.pause
    for _ in trainer.epochs(config.epochs):
        for batch, wanted in trainer.batches(loader):
            trainer.step(cross_entropy(trainer.model(batch), wanted))
            time.sleep(pause)
    with torch.no_grad():
        losses = [
            cross_entropy(trainer.model(batch), wanted, reduction="sum")
            for batch, wanted in trainer.batches(trainer.evaluation_loader(data, batch_size=64))
        ]
    loss = float(trainer.sum(torch.stack(losses).sum())) / len(data)
    trainer.save_model()
    if trainer.is_main:
        backend = dist.get_backend() if dist.is_initialized() else ""
        told = {"loss": loss.hex(), "ranks": job.cluster.world_size, "launcher": job.cluster.launcher}
        # In one piece: AWS's toolkit ends a line of the log wherever a write to its pipe ended.
        print(f"digits {json.dumps({**told, 'backend': backend})}", flush=True)


if __name__ == "__main__":
    smddp.run(main)
