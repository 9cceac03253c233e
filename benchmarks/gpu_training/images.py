"""Images to train on: one batch that stays on the device, or JPEG files that worker processes read and crop."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

Batch = tuple[Tensor, Tensor]

FILES = 256
CLASSES = 8


def synthetic(batch_size: int, size: int, batches: int, device: torch.device) -> list[Batch]:
    """Return the same batch of random images again and again, on the device: no input is waited for."""
    images = torch.randn(batch_size, 3, size, size, device=device).to(memory_format=torch.channels_last)
    return [(images, torch.randint(CLASSES, (batch_size,), device=device))] * batches


def write_jpegs(directory: Path, size: int) -> None:
    """Write random images, a seventh larger than what is cropped of them, in a directory for each class."""
    random = np.random.default_rng(0)
    for number in range(FILES):
        folder = directory / str(number % CLASSES)
        folder.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(256, size=(16, 16, 3), dtype=np.uint8)  # noise of single pixels is no photograph
        Image.fromarray(coarse).resize((size * 8 // 7,) * 2).save(folder / f"{number}.jpg", quality=90)


def read(directory: Path, batch_size: int, size: int, batches: int, *, workers: int, pin: bool) -> Iterable[Batch]:
    """Return the files in random order, as often as it takes, cropped and turned as for ImageNet."""
    crop = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    dataset = ImageFolder(str(directory), transforms.Compose([*crop, transforms.Normalize((0.5,) * 3, (0.25,) * 3)]))
    sampler = RandomSampler(dataset, replacement=True, num_samples=batch_size * batches)
    loader: DataLoader[Batch] = DataLoader(
        dataset, batch_size, sampler=sampler, num_workers=workers, pin_memory=pin, drop_last=True
    )
    return loader
