"""Random augmentation that does not depend on workers: seed, epoch and sample alone decide what is drawn for a sample.

The generators of a DataLoader worker start anew with every epoch and every resume, so what they draw depends on the
number of workers, the number of ranks, and the place where training was interrupted. Here they are seeded for each
sample. (Without workers the rank's own process fetches the sample, and the checkpoint keeps its generators.)
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
    """An order whose batches carry their epoch, which a worker process cannot know."""

    def __init__(self, order: DataOrder) -> None:
        self.order = order

    def __len__(self) -> int:
        """Return the number of batches left in the epoch."""
        return len(self.order)

    def __iter__(self) -> Iterator[Key]:
        """Yield the batches left in the epoch, each with the epoch's number."""
        epoch = self.order.epoch
        return ((epoch, samples) for samples in self.order)


class Seeded(Dataset[Any]):
    """A dataset that seeds the random generators for each sample it fetches in a loader's worker.

    It seeds torch's CPU generator, ``random`` and, if imported, NumPy. A dataset that fetches a batch at a time
    (``__getitems__``) is seeded once a batch, by the batch's first sample.
    """

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        """Wrap a dataset. Hosts whose indices name different samples need different seeds."""
        self.dataset = dataset
        self.seed = seed

    def __len__(self) -> int:
        """Return the number of samples."""
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
        torch.default_generator.manual_seed(number)  # torch.manual_seed would also seed accelerators, which is slow
        random.seed(number)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(number % 2**32)


def _fetches_batches(dataset: Dataset[Any]) -> bool:
    """Return whether a dataset has its own `__getitems__`; a `Subset` only forwards to its dataset's."""
    while isinstance(dataset, Subset) and type(dataset).__getitems__ is Subset.__getitems__:
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))
