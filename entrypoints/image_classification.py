"""Trains an image classifier on UCI digits, Fashion-MNIST or CIFAR-10: on a laptop, on SageMaker, on many GPUs.

    python image_classification.py --model resnet18                  one process
    smddp run --processes-per-node 2 image_classification.py         two on this machine
    srun --ntasks 16 python image_classification.py                  a Slurm allocation
    Estimator(entry_point="image_classification.py", source_dir="entrypoints", ...).fit({"training": "s3://..."})

The channel ``training`` (outside of a job: SM_CHANNEL_TRAINING) holds one of the three:

- ``digits.npz`` with train_images, test_images (uint8, N x 8 x 8, 0 to 16), train_labels and test_labels;
- ``FashionMNIST/raw/`` with the four unpacked idx files, as torchvision keeps them;
- ``cifar-10-batches-py/``, the unpacked archive of CIFAR-10's Python version.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import smddp

EXPECTED = {
    "digits": "digits.npz",
    "fashion-mnist": "FashionMNIST/raw/train-images-idx3-ubyte",
    "cifar10": "cifar-10-batches-py/data_batch_1",
}


@dataclass
class Config:
    """The hyperparameters."""

    dataset: Literal["auto", "digits", "fashion-mnist", "cifar10"] = "auto"  # auto: the one in the channel
    model: str = "small_cnn"  # or one of torchvision's: resnet18, resnet34, resnet50, ...
    epochs: int = 5
    batch_size: int = 64  # over all processes, so that their number does not change the training
    lr: float = 0.02
    weight_decay: float = 5e-4
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "O0", "O1", "O2", "O3"] = "auto"
    accumulate: int = 1
    clip_norm: float | None = None
    checkpoint_every: int | Literal["auto"] | None = None  # steps; each epoch ends with a checkpoint anyway
    log_every: int = 10
    seed: int = 0


def main(config: Config, job: smddp.Job) -> None:
    """Train one rank's share."""
    # Each rank draws its own random numbers, but all start from rank 0's weights.
    torch.manual_seed(config.seed + job.cluster.rank)
    train, test = datasets(config, job.channels["training"])
    model = build(config.model, train.images.shape[1])
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.lr, momentum=0.9, weight_decay=config.weight_decay, nesterov=True
    )
    steps = config.epochs * (len(train) // config.batch_size)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(steps, 1))
    trainer = smddp.Trainer(
        job,
        model,
        optimizer,
        scheduler=scheduler,
        precision=config.precision,
        accumulate=config.accumulate,
        clip_norm=config.clip_norm,
        checkpoints=smddp.CheckpointPolicy(
            every=config.checkpoint_every,
            keep=smddp.Retention(best=1, metric="accuracy"),
            on_change="take",  # a rerun with more epochs has its own schedule
        ),
        log_every=config.log_every,
        seed=config.seed,
    )
    loader = trainer.loader(
        train,
        batch_size=config.batch_size,
        fingerprint=smddp.fingerprint(train.images, train.labels),  # a resume with other data is an error
        collate_fn=as_it_is,
    )
    test_loader = trainer.evaluation_loader(test, batch_size=256, collate_fn=as_it_is)

    for _ in trainer.epochs(config.epochs):
        for images, labels in trainer.batches(loader):
            loss = cross_entropy(trainer.model(images), labels)
            trainer.step(loss)
        trainer.log(accuracy=evaluate(trainer, test_loader))
    trainer.save_model()


@torch.no_grad()
def evaluate(trainer: smddp.Trainer, loader: DataLoader[Any]) -> float:
    """Return the share of images that are classified correctly; each image counts once, on any number of processes."""
    trainer.model.eval()
    correct = seen = 0
    for images, labels in trainer.batches(loader):
        correct += int((trainer.model(images).argmax(dim=1) == labels).sum())
        seen += len(labels)
    trainer.model.train()
    correct, seen = trainer.sum([correct, seen]).tolist()
    return correct / seen


def build(name: str, channels: int) -> nn.Module:
    """Return the small CNN, or a torchvision model by name, for images of 1 or 3 channels and 10 classes."""
    if name == "small_cnn":
        return nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1, bias=False),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 10),
        )
    from torchvision import models  # here, because it takes seconds

    if name not in models.list_models(models):
        resnets = ", ".join(models.list_models(models, include="resnet*"))
        raise ValueError(f"model={name!r} is not known; use small_cnn or a model of torchvision, such as {resnets}")
    model = models.get_model(name, num_classes=10)
    if channels == 1:  # torchvision's models need 3 channels
        return nn.Sequential(nn.Conv2d(1, 3, 1, bias=False), model)
    return model


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images in memory, fetched a batch at a time by one index operation."""

    def __init__(self, images: Tensor, labels: Tensor, largest: int) -> None:
        self.images = images  # uint8, N x C x H x W
        self.labels = labels  # int64, N
        self.largest = largest  # the value of white

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return self.images[indices].float() / self.largest, self.labels[indices]


def as_it_is(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the batch unchanged: the dataset fetches whole batches."""
    return batch


def datasets(config: Config, channel: Path) -> tuple[Images, Images]:
    """Return the training and the test images in the channel."""
    name = config.dataset
    present = [known for known, file in EXPECTED.items() if (channel / file).exists()]
    if name == "auto" and len(present) == 1:
        name = present[0]
    if name not in present:
        wanted = EXPECTED.get(name) or " or ".join(EXPECTED.values())
        found = ", ".join(sorted(entry.name for entry in channel.iterdir())) or "nothing"
        raise ValueError(f"dataset={name!r} needs {wanted} in {channel}, which holds {found}; see this script's top")
    read = {"digits": read_digits, "fashion-mnist": read_fashion_mnist, "cifar10": read_cifar10}[name]
    return read(channel, "train"), read(channel, "test")


def read_digits(channel: Path, split: str) -> Images:
    """Read UCI's digits, 1797 images of 8 x 8 as in scikit-learn, from ``digits.npz``."""
    path = channel / "digits.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            images, labels = torch.from_numpy(arrays[f"{split}_images"]), torch.from_numpy(arrays[f"{split}_labels"])
    except Exception as error:  # a damaged zip raises many kinds of errors
        raise ValueError(f"{path} has no readable {split}_images and {split}_labels: {error}") from error
    if images.dtype != torch.uint8 or images.shape[1:] != (8, 8) or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{path}: {split}_images is {images.dtype} of shape {tuple(images.shape)}, {split}_labels of shape "
            f"{tuple(labels.shape)}; expected are uint8 of (N, 8, 8) and (N,)"
        )
    return Images(images.unsqueeze(1), labels.long(), largest=16)


def read_fashion_mnist(channel: Path, split: str) -> Images:
    """Read Fashion-MNIST, 70,000 grey images of 28 x 28, from ``FashionMNIST/raw``."""
    from torchvision.datasets import FashionMNIST

    try:
        data = FashionMNIST(str(channel), train=split == "train", download=False)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        raise ValueError(
            f"{channel}/FashionMNIST/raw does not hold the four unpacked idx files of Fashion-MNIST, whole: {error!r}"
        ) from error
    return Images(data.data.unsqueeze(1), data.targets, largest=255)


def read_cifar10(channel: Path, split: str) -> Images:
    """Read CIFAR-10, 60,000 colour images of 32 x 32, from ``cifar-10-batches-py``.

    Its files are pickles, which can run code: torchvision compares their MD5 sums before it opens any.
    """
    from torchvision.datasets import CIFAR10

    try:
        data = CIFAR10(str(channel), train=split == "train", download=False)
    except RuntimeError as error:
        raise ValueError(
            f"{channel}/cifar-10-batches-py is not the unpacked archive of CIFAR-10: a file is missing, or its MD5 sum "
            "is not the published one"
        ) from error
    return Images(torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(data.targets), largest=255)


if __name__ == "__main__":
    smddp.run(main)
