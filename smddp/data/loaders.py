"""The DataLoaders of one rank: training data whose place a checkpoint keeps, and evaluation data, each sample once.

Which samples a batch holds is the samplers' business; fetching them is ``torch.utils.data.DataLoader``'s.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from smddp.cluster import Cluster
from smddp.data.augmentation import InEpoch, Seeded
from smddp.data.order import Order
from smddp.data.partition import Tail
from smddp.data.sampler import ElasticSampler, EvaluationSampler


class Loaders:
    """Makes the loaders of a training run.

    Args:
        cluster: Which rank this is, of how many.
        accumulate: Micro-batches an optimizer step.
        seed: Decides the order of the training data.
        pin_memory: Whether batches go to a GPU.
    """

    def __init__(self, cluster: Cluster, *, accumulate: int, seed: int, pin_memory: bool) -> None:
        self.order: Order | None = None
        """The training data's, with the place in it, once there is a loader for it."""
        self._cluster = cluster
        self._accumulate = accumulate
        self._seed = seed
        # A generator of its own: a loader must not draw from the RNG that the model's dropout draws from.
        self._worker_seeds = torch.Generator()
        self._defaults = {"pin_memory": pin_memory, "generator": self._worker_seeds}

    def training(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int,
        shuffle: bool,
        tail: Tail,
        fingerprint: str | None,
        options: dict[str, Any],
    ) -> DataLoader[Any]:
        """Batches of this rank's share of each global batch.

        Args:
            dataset: The whole dataset; it must have a length.
            batch_size: Samples an optimizer step, over all ranks and micro-batches.
            shuffle: False keeps the dataset's order.
            tail: What becomes of the samples beyond the last whole batch of an epoch.
            fingerprint: Of the data.
            options: Further arguments of DataLoader.

        Raises:
            ValueError: If the batch size does not divide, or the dataset has no length.
        """
        self.order = ElasticSampler(
            _length(dataset),
            global_batch=batch_size,
            rank=self._cluster.rank,
            world_size=self._cluster.world_size,
            accumulate=self._accumulate,
            seed=self._seed,
            shuffle=shuffle,
            tail=tail,
            fingerprint=fingerprint,
        )
        options = {**self._defaults, **options}
        return DataLoader(Seeded(dataset, self._seed), batch_sampler=InEpoch(self.order), **options)

    def evaluation(self, dataset: Dataset[Any], *, batch_size: int, options: dict[str, Any]) -> DataLoader[Any]:
        """This rank's share of all samples, in order, none padded.

        Raises:
            ValueError: If the dataset has no length.
        """
        sampler = EvaluationSampler(
            _length(dataset), batch_size=batch_size, rank=self._cluster.rank, world_size=self._cluster.world_size
        )
        return DataLoader(dataset, batch_sampler=sampler, **{**self._defaults, **options})

    def start_epoch(self, epoch: int) -> None:
        """Goes to the beginning of the epoch, unless the place is in it already."""
        self._worker_seeds.manual_seed(hash((self._seed, epoch, self._cluster.rank)) % 2**63)
        if self.order is not None:
            self.order.start_epoch(epoch)


def _length(dataset: Dataset[Any]) -> int:
    if not hasattr(dataset, "__len__"):
        raise ValueError(f"{type(dataset).__name__} has no length, and so no order that could be kept; give it __len__")
    return len(dataset)
