"""Trains two models, one after the other, and logs by the root logger what looks like a resume."""

import logging

import torch

import smddp


def main(job: smddp.Job) -> None:
    logging.getLogger().warning("resumed at step 7 of my own plan")
    for name in ("teacher", "student"):
        model = torch.nn.Linear(1, 1)
        trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), name=name)
        loader = trainer.loader(torch.utils.data.TensorDataset(torch.ones(16, 1)), batch_size=4)
        for _ in trainer.epochs(100):
            for (inputs,) in trainer.batches(loader):
                trainer.step(trainer.model(inputs).square().mean())


smddp.run(main)
