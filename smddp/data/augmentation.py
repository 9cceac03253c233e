"""Random augmentation that knows no workers: what is drawn for a sample depends on seed, epoch and sample alone.

A worker of a DataLoader has generators of its own, which begin anew with every epoch and every resume: the numbers that
it draws depend on how many workers there are, on the number of ranks, and on where training was interrupted. Here they
are seeded for each sample. (Without workers the sample is fetched in the rank's own process, whose generators the
checkpoint keeps.)
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler, Subset, get_worker_info

from smddp.data.formats.record import RawRecord
from smddp.data.order import DataOrder

Key = tuple[int, list[Any]]
"""An epoch, and the samples of a batch as the order names them."""


class InEpoch(Sampler[Any]):
    """An order whose batches say which epoch they are of, as the workers could not know."""

    def __init__(self, order: DataOrder) -> None:
        self.order = order

    def __len__(self) -> int:
        """Return the batches that are left in the epoch."""
        return len(self.order)

    def __iter__(self) -> Iterator[Key]:
        """Give what is left of the epoch."""
        epoch = self.order.epoch
        return ((epoch, samples) for samples in self.order)


class Seeded(Dataset[Any]):
    """A dataset whose samples are each fetched with generators seeded for it, in the workers of a loader.

    Seeded are the global generators of torch (that of the CPU, where workers compute), of ``random`` and, where it is
    imported, of NumPy. A dataset that fetches a batch at a time (``__getitems__``) has them seeded once a batch, by its
    first sample.
    """

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        """Seed for this dataset.

        Args:
            dataset: Fetches a sample, or a batch of them.
            seed: What decides the draws, with epoch and sample; hosts that call other samples alike need each its own.
        """
        self.dataset = dataset
        self.seed = seed

    def __len__(self) -> int:
        """Return how many samples there are."""
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitems__(self, key: Key) -> Any:
        """Fetch the samples of a batch."""
        epoch, samples = key
        in_worker = get_worker_info() is not None
        if _fetches_batches(self.dataset):
            if in_worker and samples:
                self._seed(epoch, samples[0])
            return self.dataset.__getitems__(samples)  # type: ignore[attr-defined]
        fetched = []
        for sample in samples:
            if in_worker:
                self._seed(epoch, sample)
            fetched.append(self.dataset[sample])
        return fetched

    def _seed(self, epoch: int, sample: object) -> None:
        name = sample.key if isinstance(sample, RawRecord) else sample
        text = f"{self.seed}, {epoch}, {name}"
        digest = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest()
        number = int.from_bytes(digest, "little")
        torch.default_generator.manual_seed(number)  # no accelerator's, as torch.manual_seed does: slowly
        random.seed(number)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(number % 2**32)


def _fetches_batches(dataset: Dataset[Any]) -> bool:
    """Return whether a dataset fetches a batch at a time of its own; a `Subset` only passes that on."""
    while isinstance(dataset, Subset) and type(dataset).__getitems__ is Subset.__getitems__:
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))
