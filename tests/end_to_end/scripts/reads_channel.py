"""Trains for very long on the files of a channel, each of which is a sample."""

import torch

import smddp


def main(job: smddp.Job) -> None:
    files = [path for path in sorted(job.channels["training"].rglob("*")) if path.is_file()]
    samples = torch.tensor([float(path.read_text()) for path in files for _ in range(100)])
    model = torch.nn.Linear(1, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.001))
    loader = trainer.loader(torch.utils.data.TensorDataset(samples[:, None]), batch_size=4)
    for _ in trainer.epochs(100_000):
        for (inputs,) in trainer.batches(loader):
            trainer.step(trainer.model(inputs).square().mean())
        trainer.log(files=len(files))
    trainer.save_model()


smddp.run(main)
