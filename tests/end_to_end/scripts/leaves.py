"""Trains a few epochs with checkpoints, and leaves a model and output data."""

import time
from dataclasses import dataclass

import torch

import smddp


@dataclass
class Config:
    epochs: int = 2
    note: str = ""
    wait_at: int | None = None  # the step at which to wait for a stop


def main(config: Config, job: smddp.Job) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = smddp.Trainer(job, model, optimizer, log_every=5, checkpoints=smddp.CheckpointPolicy(every=10))
    loader = trainer.loader(torch.utils.data.TensorDataset(torch.ones(40, 3)), batch_size=2)
    for _ in trainer.epochs(config.epochs):
        for (inputs,) in trainer.batches(loader):
            trainer.step(trainer.model(inputs).square().mean())
            while trainer.steps == config.wait_at and not job.stopping:
                time.sleep(0.02)
    trainer.save_model()
    (job.output_data_dir / "note.txt").write_text(config.note)


if __name__ == "__main__":
    smddp.run(main)
