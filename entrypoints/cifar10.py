"""Trains on CIFAR-10 as a well-known article on distributed training does, with its command line and corrections.

    python cifar10.py --epochs 5                                     one process
    python cifar10.py --nodes 1 --gpus 2 --epochs 5                  two, started by this file
    python cifar10.py -n 2 -g 2 -nr 0 --epochs 5                     on the first of two machines; -nr 1 on the second,
                                                                     with MASTER_ADDR and MASTER_PORT on both
    smddp run --processes-per-node 2 cifar10.py --epochs 5           or torchrun, srun, mpirun: -n, -g, -nr are theirs
    Estimator(entry_point="cifar10.py", source_dir="entrypoints", hyperparameters={"epochs": 5}, ...)

The channel ``training``, or else ``./data``, holds ``cifar-10-batches-py/``, the unpacked archive of CIFAR-10's Python
version. Nothing is downloaded.

Differences from the article:

- The learning rate is higher (the article has 1e-4, without momentum).
- Each epoch has its own order (without ``set_epoch`` all epochs had the same).
- Each test image counts once (the article uses the training set's sampler for the test set, and never tests).
- The batch size is the total of all processes.
- Apex's levels O0 to O3 are names of precisions.
"""

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, relu
from torch.utils.data import DataLoader

import smddp


@dataclass
class Config:
    """The hyperparameters."""

    epochs: int = 2
    batch_size: int = 100  # over all processes
    lr: float = 0.02
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "O0", "O1", "O2", "O3"] = "auto"
    workers: int = 0  # of each loader
    seed: int = 0


class Net(nn.Module):
    """The article's network: images of (N, 3, 32, 32) in, logits of (N, 10) out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classify images."""
        x = max_pool2d(relu(self.conv1(x)), 2)
        x = max_pool2d(relu(self.conv2(x)), 2)
        x = x.flatten(1)
        return self.fc3(relu(self.fc2(relu(self.fc1(x)))))


def main(config: Config, job: smddp.Job) -> None:
    """Train one rank's share."""
    torch.manual_seed(config.seed)
    train, test = datasets(job.channels.get("training", Path("data")))
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9)
    trainer = smddp.Trainer(job, model, optimizer, precision=config.precision, seed=config.seed)
    loader = trainer.loader(train, batch_size=config.batch_size, num_workers=config.workers)
    test_loader = trainer.evaluation_loader(test, batch_size=200, num_workers=config.workers)
    for _epoch in trainer.epochs(config.epochs):
        for images, labels in trainer.batches(loader):
            trainer.step(cross_entropy(trainer.model(images), labels))
        trainer.log(accuracy=evaluate(trainer, test_loader))
    trainer.save_model()


@torch.no_grad()
def evaluate(trainer: smddp.Trainer, loader: DataLoader[tuple[Tensor, Tensor]]) -> float:
    """Return the share of test images that are classified correctly."""
    trainer.model.eval()
    right = count = 0
    for images, labels in trainer.batches(loader):
        right += int((trainer.model(images).argmax(dim=1) == labels).sum())
        count += len(labels)
    trainer.model.train()
    right, count = trainer.sum([right, count]).tolist()
    return right / count


def datasets(directory: Path) -> tuple["torch.utils.data.Dataset[tuple[Tensor, int]]", ...]:
    """Return the training images, randomly cropped and flipped, and the test images."""
    from torchvision import transforms
    from torchvision.datasets import CIFAR10

    normal = [transforms.ToTensor(), transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))]
    random = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    try:
        train = CIFAR10(directory, train=True, transform=transforms.Compose([*random, *normal]))
        test = CIFAR10(directory, train=False, transform=transforms.Compose(normal))
    except RuntimeError as error:
        raise ValueError(
            f"{directory.absolute()} does not hold cifar-10-batches-py/, whole: unpack cifar-10-python.tar.gz there, "
            "or give the channel training"
        ) from error
    return train, test


def start_ranks(arguments: list[str]) -> int | None:
    """Start the processes of the article's options, and return their exit code; None if this process is a rank."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-n", "--nodes", type=int, default=1)
    parser.add_argument("-g", "--gpus", type=int, default=1)
    parser.add_argument("-nr", "--nr", type=int, default=0)
    article, rest = parser.parse_known_args(arguments)
    sys.argv[1:] = rest  # smddp.run reads the remaining options
    if smddp.Cluster.detect().launcher != "single" or article.nodes * article.gpus == 1:
        return None
    from smddp.launch.local import run_local

    several = article.nodes > 1
    return run_local(
        __file__,
        rest,
        nodes=article.nodes,
        processes_per_node=article.gpus,
        node_rank=article.nr if several else None,
        master_addr=os.environ.get("MASTER_ADDR") if several else None,
        master_port=int(os.environ.get("MASTER_PORT", "0")) or None if several else None,
    )


if __name__ == "__main__":
    code = start_ranks(sys.argv[1:])
    if code is not None:
        sys.exit(code)
    smddp.run(main)
