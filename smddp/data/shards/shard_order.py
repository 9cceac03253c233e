"""The order of training data in shards: which records each micro-batch of this rank holds, and how far it has come."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from smddp.data.formats.record import RawRecord
from smddp.data.order.partition import Tail
from smddp.data.order.sampler import ElasticSampler
from smddp.data.shards.dataset import ShardedDataset
from smddp.data.shards.interleave import ALGORITHM, Interleave
from smddp.data.shards.prefetch import prefetch
from smddp.data.shards.reading import read_micro_batches, shares_of
from smddp.data.shards.sequence import ShardSequence

logger = logging.getLogger(__name__)

LANES = 48
"""The most streams by default: it divides by 1, 2, 3, 4, 6, 8, 12, 16, 24 and 48 ranks."""

_AHEAD = 4  # micro-batches; the window is ahead of them


class ShardOrder:
    """The training data of one rank in shards: read in sequence, shuffled, resumable at any number of ranks.

    Iterating gives one list of raw records for each micro-batch of this rank, from the first optimizer step that was
    not taken yet to the end of the epoch; ``accumulate`` lists in a row are one optimizer step. Only `advance` counts a
    step as taken. It is a batch sampler whose indices are whole records, which a loader's workers decode::

        DataLoader(dataset.decoder, batch_sampler=ShardOrder(dataset, global_batch=256), num_workers=4)

    The shards come in another order in each epoch; `lanes` streams of them are read at a time, and a record changes
    places with others of its window only. That mixes less than a shuffle of all: spread the classes over the shards.
    """

    def __init__(
        self,
        dataset: ShardedDataset,
        *,
        global_batch: int,
        rank: int = 0,
        world_size: int = 1,
        accumulate: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        tail: Tail = "drop",
    ) -> None:
        """Describe the order, and see that the shards are what the index says.

        Args:
            dataset: The shards.
            global_batch: Samples an optimizer step, over all ranks and micro-batches.
            rank: This process.
            world_size: How many processes there are.
            accumulate: Micro-batches an optimizer step on each rank.
            seed: Decides, with the epoch and the number of records, the order.
            shuffle: False keeps the shards' order.
            tail: What becomes of the records beyond the last whole global batch; see `smddp.ElasticSampler`.

        Raises:
            ValueError: The numbers do not fit each other. DataError, which is one: the shards are not as they were.
        """
        index = dataset.index
        # It keeps the place, and checks the numbers: these are the same for all data.
        place = ElasticSampler(
            index.records,
            global_batch=global_batch,
            rank=rank,
            world_size=world_size,
            accumulate=accumulate,
            seed=seed,
            shuffle=shuffle,
            tail=tail,
            fingerprint=index.fingerprint,
        )
        self._begin(dataset, place)

    @classmethod
    def of(cls, dataset: ShardedDataset, place: ElasticSampler) -> ShardOrder:
        """Describe the order of a place among as many samples as the shards have, or as the hosts' parts of them have.

        Raises:
            ValueError: The numbers do not fit each other.
        """
        order = cls.__new__(cls)
        order._begin(dataset, place)  # noqa: SLF001  # its own
        return order

    def _begin(self, dataset: ShardedDataset, place: ElasticSampler) -> None:
        share = place.share
        cut = share.partition
        lanes = dataset.lanes
        if lanes is None:
            lanes = math.gcd(cut.global_batch, LANES) if place.shuffle else 1
        if cut.global_batch % lanes:
            raise ValueError(f"lanes is {lanes}: it must divide the global batch, {cut.global_batch}")
        self.dataset = dataset
        self.global_batch = place.global_batch
        self.window = dataset.window
        self.lanes = lanes
        self._place = place
        self._share = share
        if place.rank == 0:
            logger.info(
                "%d records in %d shards of %s; the ranks read %d streams, and hold some %.0f MiB in memory together",
                *(share.size, len(dataset.index.shards), dataset.source, lanes, self._memory() / 2**20),
            )
            if lanes % cut.world_size:
                logger.warning(
                    "%d ranks do not divide %d lanes: some are read by two ranks or more; choose a global_batch or "
                    "lanes that the number of ranks divides, or the other way round, to read each record once",
                    *(cut.world_size, lanes),
                )

    @property
    def epoch(self) -> int:
        """The epoch whose order is given, from 0."""
        return self._place.epoch

    @property
    def consumed(self) -> int:
        """Samples of this epoch, over all ranks, that optimizer steps were taken on."""
        return self._place.consumed

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in a whole epoch."""
        return self._place.steps_per_epoch

    def __len__(self) -> int:
        """Return this rank's micro-batches that are left in the epoch."""
        return len(self._place)

    def __iter__(self) -> Iterator[list[RawRecord]]:
        """Give this rank's micro-batches from the first step not taken to the end of the epoch.

        They are read ahead by a thread, which ends with the iterator.

        Raises:
            DataError: A record cannot be read.
        """
        cut = self._share.partition
        lanes = Interleave(
            records=cut.size,
            global_batch=cut.global_batch,
            lanes=self.lanes,
            window=self.window,
            seed=self._share.seed,
            epoch=self.epoch,
            shuffle=self._place.shuffle,
        )
        shards = self.dataset.index.shards
        sequence = ShardSequence(
            self.dataset.source,
            [shards[number] for number in lanes.shard_order(len(shards))],
            largest_record=self.dataset.largest_record,
        )
        step = -(-self.consumed // self.global_batch)
        produce = partial(read_micro_batches, sequence, lanes, cut, rank=self._share.rank, step=step)
        return prefetch(lambda is_abandoned: produce(is_abandoned=is_abandoned), ahead=_AHEAD)

    def start_epoch(self, epoch: int) -> None:
        """Begin this epoch, or go on with it where it is already under way."""
        self._place.start_epoch(epoch)

    def advance(self) -> None:
        """Count one optimizer step as taken.

        Raises:
            ValueError: All steps of the epoch were taken already.
        """
        self._place.advance()

    def loss_weight(self, micro_batch: int) -> float:
        """Return what the mean loss of a micro-batch of the step under way is multiplied by, on this rank.

        Args:
            micro_batch: From 0 to ``accumulate - 1``.
        """
        if not self._place.is_at_short_batch:
            return 1.0
        cut = self._share.partition
        return shares_of(cut).short_weight(0, self._share.rank * cut.accumulate + micro_batch)

    def state_dict(self) -> dict[str, Any]:
        """Give the position in the data, the same on every rank: a small JSON object."""
        return {**self._place.state_dict(), **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `state_dict` gave, at any number of ranks.

        Where each host has a part of its own, other hosts are refused, or begin the epoch anew, as the place says.

        Raises:
            ValueError: The position belongs to another order, or to none; or the data changed.
        """
        own = self._identity()
        # Other hosts have other lanes, and so has another batch. Such a position is refused for what it is, or its
        # epoch begun anew: any lanes fit that.
        has_other_lanes = own.keys() <= state.keys() and (
            self._place.host_change(state) is not None or state.get("global_batch") != self.global_batch
        )
        for name, here in own.items():
            if not has_other_lanes and state.get(name) != here:
                raise ValueError(
                    f"the saved position in the data has {name}={state.get(name)!r}, this run {name}={here!r}: "
                    f"the samples would come in another order; resume with the same {name}, or start a new run"
                )
        self._place.load_state_dict({name: value for name, value in state.items() if name not in own})

    def _identity(self) -> dict[str, Any]:
        """Return what decides the order besides what the place knows."""
        return {"shards": ALGORITHM, "lanes": self.lanes, "window": self.window}

    def _memory(self) -> float:
        """Return about how many bytes the records in all windows have."""
        index = self.dataset.index
        held = self.window if self._place.shuffle else self.global_batch
        return min(held, index.records) * index.size / max(index.records, 1)
