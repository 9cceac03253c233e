"""Transfer learning: fine-tunes a pretrained ResNet of torchvision on Fashion-MNIST.

    python transfer_learning.py                                      one process
    smddp run --processes-per-node 2 transfer_learning.py            two on this machine
    srun --ntasks 16 python transfer_learning.py                     a Slurm allocation
    Estimator(entry_point="transfer_learning.py", source_dir="entrypoints", distribution="torchrun", ...).fit(
        {"training": "s3://bucket/fashion-mnist", "weights": "s3://bucket/resnet18"})

Outside of a job SM_CHANNEL_TRAINING and SM_CHANNEL_WEIGHTS name the two directories:

- ``training`` holds the four idx files of Fashion-MNIST, packed (``.gz``) or as torchvision keeps them
  (``FashionMNIST/raw/``). The default is the directory of Debian's package ``dataset-fashion-mnist``.
- ``weights`` holds a state_dict, such as torchvision's ``resnet18-f37072fd.pth``, a ``model.tar.gz``, or checkpoints of
  an earlier run. Nothing in it is unpickled. Without it the script warns, and trains from random weights.

First only the new last layer learns, then the whole network, with a smaller learning rate for the older layers. The
weights' moving average (EMA) is evaluated, and the average of the best epoch becomes the model. ``--compile`` compiles
again at the beginning of each phase, and needs a C++ compiler on a CPU; the average is not compiled.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from torchvision import models
from torchvision.datasets import FashionMNIST
from torchvision.datasets.utils import extract_archive
from torchvision.transforms import v2

import smddp
from smddp.checkpoint import find_best

logger = logging.getLogger(__name__)

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@dataclass
class Config:
    """The hyperparameters."""

    model: str = "resnet18"  # or another torchvision model whose last layer is called fc
    epochs: int = 5
    frozen_epochs: int = 1  # the first epochs, in which only the last layer learns
    batch_size: int = 256  # over all processes
    lr: float = 0.05  # of the last layer
    backbone_lr: float = 0.005  # of all other layers, once they learn
    ema: float = 0.99  # decay of the weights' moving average
    image_size: int = 28  # images are resized to it; ImageNet's networks were trained at 224
    compile: bool = False  # compiling resnet18 takes 30 s frozen and 75 s unfrozen, on two CPU cores
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    workers: int = 2  # worker processes of each loader
    seed: int = 0


def main(config: Config, job: smddp.Job) -> None:
    """Train one rank's share."""
    smddp.seed_everything(config.seed)
    model = network(config.model)
    is_pretrained = take_weights(model, job.channels.get("weights"))
    # Convolutions are faster with adjacent channels (channels_last), above all in half precision.
    model = model.to(memory_format=torch.channels_last)

    backbone = [weight for name, weight in model.named_parameters() if not name.startswith("fc.")]
    groups = [
        {"params": list(model.fc.parameters()), "lr": config.lr},
        {"params": backbone, "lr": config.backbone_lr if is_pretrained else config.lr},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4)
    train, test = datasets(job.channels.get("training"), config.image_size)
    steps = config.epochs * (len(train) // config.batch_size)
    trainer = smddp.Trainer(
        job,
        torch.compile(model) if config.compile else model,
        optimizer,
        scheduler=smddp.warmup_cosine(optimizer, warmup_steps=steps // 20, total_steps=max(steps, 1)),
        precision=config.precision,
        ema=config.ema,
        checkpoints=smddp.CheckpointPolicy(
            keep=smddp.Retention(last=1, best=1, metric="accuracy"),
            on_change="take",  # a rerun with more epochs has its own schedule
        ),
        seed=config.seed,
    )
    loader = trainer.loader(train, batch_size=config.batch_size, num_workers=config.workers)
    test_loader = trainer.evaluation_loader(test, batch_size=256, num_workers=config.workers)

    for epoch in trainer.epochs(config.epochs):
        freeze(model, is_pretrained and epoch < config.frozen_epochs)
        for images, labels in trainer.batches(loader):
            logits = trainer.model(images.contiguous(memory_format=torch.channels_last))
            trainer.step(cross_entropy(logits, labels))
        trainer.log(accuracy=evaluate(trainer, test_loader))

    best = network(config.model)
    if trainer.is_main:  # only rank 0: another host may have no checkpoints
        smddp.load_weights(best, find_best(job.checkpoint_location, "accuracy").path, part="ema")
    trainer.save_model(best)


def network(name: str) -> nn.Module:
    """Return a torchvision model by name, with random weights and ten classes."""
    model = models.get_model(name, num_classes=10) if name in models.list_models(models) else None
    if not isinstance(getattr(model, "fc", None), nn.Linear):
        some = ", ".join(models.list_models(models, include="resnet*"))
        raise ValueError(f"model={name!r} is none of torchvision's whose last layer is fc: take one of {some}")
    return model


def take_weights(model: nn.Module, channel: Path | None) -> bool:
    """Load the weights in the channel into the model; return whether there are any.

    A last layer for other classes stays random. Any other layer that does not fit is an error.
    """
    if channel is None:
        logger.warning("there is no channel 'weights': nothing is transferred, and all layers learn from the start")
        return False
    files = [file for file in channel.iterdir() if file.is_file()]
    source = files[0] if len(files) == 1 else channel
    report = smddp.load_weights(model, source, strict=False)
    unfit = {*report.missing, *report.unexpected, *report.misshapen} - {"fc.weight", "fc.bias"}
    # BatchNorm's count of batches is not used here, and files from before 2018 do not have it.
    if other := sorted(name for name in unfit if not name.endswith("num_batches_tracked")):
        raise ValueError(f"{source} holds the weights of another model: {len(other)} do not fit, such as {other[0]}")
    return True


def freeze(model: nn.Module, is_frozen: bool) -> None:
    """Let only the last layer learn, or all layers, in training mode."""
    model.requires_grad_(not is_frozen).train(not is_frozen)  # only eval mode freezes BatchNorm's statistics
    model.fc.requires_grad_(True)


@torch.no_grad()
def evaluate(trainer: smddp.Trainer, loader: DataLoader[tuple[Tensor, Tensor]]) -> float:
    """Return the share of test images that the weights' average classifies correctly."""
    assert trainer.ema is not None
    right = count = 0
    for images, labels in trainer.batches(loader):
        logits = trainer.ema(images.contiguous(memory_format=torch.channels_last))
        right += int((logits.argmax(dim=1) == labels).sum())
        count += len(labels)
    right, count = trainer.sum([right, count]).tolist()
    return right / count


def datasets(channel: Path | None, size: int) -> tuple[Dataset[tuple[Tensor, int]], ...]:
    """Return the training images, randomly flipped, and the test images: (3, size, size), normalised as ImageNet's."""
    if channel is None:
        logger.info("there is no channel 'training': Fashion-MNIST is read from %s", DEBIAN)
        channel = DEBIAN
    shown = [v2.ToImage(), v2.Grayscale(3), v2.Resize(size), v2.ToDtype(torch.float32, scale=True)]
    normal = v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    with TemporaryDirectory() as unpacked:
        root, packed = channel, list(channel.glob("*-ubyte.gz"))
        if packed:
            root = Path(unpacked)
            (root / "FashionMNIST" / "raw").mkdir(parents=True)
        for file in packed:
            extract_archive(file, root / "FashionMNIST" / "raw")
        try:
            train = FashionMNIST(root, train=True, transform=v2.Compose([*shown, v2.RandomHorizontalFlip(), normal]))
            test = FashionMNIST(root, train=False, transform=v2.Compose([*shown, normal]))
        except (OSError, RuntimeError, ValueError, AssertionError) as error:
            raise ValueError(
                f"{channel} does not hold the four idx files of Fashion-MNIST, whole: install dataset-fashion-mnist, "
                f"or give the channel training ({error!r})"
            ) from error
    return train, test


if __name__ == "__main__":
    smddp.run(main)
