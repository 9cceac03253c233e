"""The DataLoaders of one rank: training data whose position a checkpoint keeps, and evaluation data, each sample once.

The samplers choose the samples of a batch; ``torch.utils.data.DataLoader`` fetches them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader

from smddp.data.augmentation import InEpoch, Seeded
from smddp.data.build_order import AnyDataset, OrderOptions, make_evaluation, make_rank_data
from smddp.data.order import DataOrder
from smddp.data.worker_signals import OutliveStop
from smddp.distributed import Membership


class Loaders:
    """Makes the loaders of a training run; ``seed`` decides what its workers draw at random."""

    def __init__(self, membership: Membership, *, seed: int, pin_memory: bool) -> None:
        self.order: DataOrder | None = None
        """The training data's order and position; None before `training` made a loader."""
        self.loader: Iterable[Any] | None = None
        """The training loader: made by `training`, or the user's own stateful loader."""
        self._membership = membership
        self._seed = seed
        # A separate generator: a loader must not draw from the RNG of the model's dropout.
        self._worker_seeds = torch.Generator()
        self._defaults = {"pin_memory": pin_memory, "generator": self._worker_seeds}

    def training(self, dataset: AnyDataset, order: OrderOptions, *, options: dict[str, Any]) -> DataLoader[Any]:
        """Return a loader of this rank's share of each global batch. Collective; raises as `make_rank_data`."""
        data = make_rank_data(dataset, order, self._membership)
        self.order = data.order
        self.loader = loader = DataLoader(
            Seeded(data.fetching, data.seed), batch_sampler=InEpoch(data.order), **self._complete(options)
        )
        return loader

    def evaluation(
        self, dataset: AnyDataset, *, batch_size: int, sharded_by_host: bool, options: dict[str, Any]
    ) -> DataLoader[Any]:
        """Return a loader of this rank's share of all samples, in order, unpadded. Collective."""
        sampler, fetching = make_evaluation(dataset, batch_size, self._membership, sharded_by_host=sharded_by_host)
        return DataLoader(fetching, batch_sampler=sampler, **self._complete(options))

    def start_epoch(self, epoch: int) -> None:
        """Go to the beginning of the epoch, unless the position is already inside it."""
        self._worker_seeds.manual_seed(hash((self._seed, epoch, self._membership.cluster.rank)) % 2**63)
        if self.order is not None:
            self.order.start_epoch(epoch)

    def _complete(self, options: dict[str, Any]) -> dict[str, Any]:
        if options.get("num_workers"):
            options = {**options, "worker_init_fn": OutliveStop(options.get("worker_init_fn"))}
        return {**self._defaults, **options}
