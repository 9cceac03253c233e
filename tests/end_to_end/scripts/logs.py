"""Trains a few steps, and logs what came of them."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import smddp


def main(job: smddp.Job) -> None:
    torch.manual_seed(1)
    model = nn.Linear(1, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.01), log_every=5)
    loader = trainer.loader(TensorDataset(torch.ones(20, 1)), batch_size=2)
    for _ in trainer.epochs(1):
        for (x,) in trainer.batches(loader):
            trainer.step(trainer.model(x).square().mean())
        trainer.log(reduce="mean", accuracy=0.875)


if __name__ == "__main__":
    smddp.run(main)
