"""Trains a small network on UCI's digits, configured by Hydra: ``conf/`` has the defaults and the choice of optimizers.

    python train.py optimizer=adam model.depth=3                          one process
    smddp run --processes-per-node 2 train.py optimizer=adam              two on this machine
    srun --ntasks 4 python train.py                                       a Slurm allocation
    Estimator(entry_point="train.py", source_dir="entrypoints/hydra_digits", distribution="torchrun",
              hyperparameters={"optimizer": "adam", "model.depth": 3}, ...).fit()

``python train.py --cfg job`` shows the config. Only one line differs from any other Hydra script: the decorator.
"""

from itertools import pairwise

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset, random_split

import smddp
import smddp.hydra


@smddp.hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(config: DictConfig, job: smddp.Job) -> None:
    """Train one rank's share."""
    smddp.seed_everything(config.seed)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    train, test = random_split(data, [0.8, 0.2], generator=torch.Generator().manual_seed(config.seed))
    model = build(config.model.width, config.model.depth)
    trainer = smddp.Trainer(job, model, instantiate(config.optimizer, model.parameters()), seed=config.seed)
    loader = trainer.loader(train, batch_size=config.batch_size)
    test_images, test_labels = (torch.stack(column) for column in zip(*test, strict=True))
    for _epoch in trainer.epochs(config.epochs):
        for inputs, targets in trainer.batches(loader):
            trainer.step(cross_entropy(trainer.model(inputs), targets))
        trainer.log(test_accuracy=accuracy(trainer, test_images, test_labels))
    trainer.save_model()


def build(width: int, depth: int) -> nn.Module:
    """Return a network with ``depth`` hidden layers of ``width``."""
    widths = [64, *[width] * depth]
    hidden = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(widths[-1], 10))


def accuracy(trainer: smddp.Trainer, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that are classified correctly, the same on all ranks."""
    with torch.no_grad():
        found = trainer.module(images.to(trainer.device)).argmax(1).cpu()
    return (found == labels).float().mean().item()


if __name__ == "__main__":
    main()
