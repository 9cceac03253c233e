"""The order of data in shards for one rank: in training, shuffled and resumable; in evaluation, as stored.

A training order yields the records of each micro-batch of the rank, and has a position in the epoch. An evaluation
order yields every record once over all ranks.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any

from smddp.data.formats.record import RawRecord
from smddp.data.order.data_order import Tail
from smddp.data.order.sampler import ElasticSampler, EvaluationSampler, refuse_other_order
from smddp.data.shards.dataset import ShardedDataset
from smddp.data.shards.interleave import ALGORITHM, Interleave, read_micro_batches, shares_of
from smddp.data.shards.prefetch import prefetch
from smddp.data.shards.shard import ShardSequence
from smddp.display_text import counted

logger = logging.getLogger(__name__)

LANES = 48
"""The default upper bound of streams: 1, 2, 3, 4, 6, 8, 12, 16, 24 and 48 ranks divide it."""

_AHEAD = 4  # micro-batches, besides the shuffle window

_EVALUATION_AHEAD = 4  # batches


class ShardOrder:
    """The training data of one rank in shards: read in sequence, shuffled, resumable at any number of ranks.

    Iterating yields one list of raw records for each micro-batch of this rank, from the first optimizer step not taken
    yet to the end of the epoch; ``accumulate`` lists in a row are one optimizer step. Only `advance` counts a step as
    taken. It is a batch sampler whose indices are whole records, which a loader's workers decode:

        DataLoader(dataset.decoder, batch_sampler=ShardOrder(dataset, global_batch=256), num_workers=4)

    Each epoch has another order of the shards; `lanes` streams of them are read at a time, and a record is shuffled
    only within its window. That mixes less than a full shuffle: spread the classes over the shards.
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
        """Describe the order, and check the shards against the index.

        Args:
            dataset: The shards.
            global_batch: Samples of an optimizer step, over all ranks and micro-batches.
            rank: This process's rank.
            world_size: The number of processes.
            accumulate: Micro-batches of an optimizer step on each rank.
            seed: Decides the order, with the epoch and the number of records.
            shuffle: False keeps the shards' order.
            tail: What to do with the records behind the last whole global batch; see `smddp.ElasticSampler`.

        Raises:
            ValueError: The numbers do not fit each other.
            DataError: The shards differ from the index.
        """
        index = dataset.index
        # The sampler keeps the position and checks the numbers, as for any other data.
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
        """Describe the order that a sampler's position and options define for these shards.

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
                "%s in %s of %s; the ranks read %s, and hold some %.0f MiB in memory together",
                counted(share.size, "record"),
                counted(len(dataset.index.shards), "shard"),
                dataset.source,
                counted(lanes, "stream"),
                self._memory() / 2**20,
            )
            if lanes % cut.world_size:
                logger.warning(
                    "%d ranks do not divide %d lanes: some are read by two ranks or more; choose a global_batch or "
                    "lanes that the number of ranks divides, or the other way round, to read each record once",
                    cut.world_size,
                    lanes,
                )

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._place.epoch

    @property
    def consumed(self) -> int:
        """Samples of this epoch consumed by optimizer steps, over all ranks."""
        return self._place.consumed

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in a whole epoch."""
        return self._place.steps_per_epoch

    def __len__(self) -> int:
        """Return the number of this rank's micro-batches left in the epoch."""
        return len(self._place)

    def __iter__(self) -> Iterator[list[RawRecord]]:
        """Return an iterator over this rank's micro-batches, from the first step not taken to the end of the epoch.

        A thread reads them ahead, and ends with the iterator.

        Raises:
            DataError: A record cannot be read.
        """
        return self._from(-(-self.consumed // self.global_batch))

    def whole_epoch(self) -> Iterator[list[RawRecord]]:
        """Return an iterator over all of this rank's micro-batches of the epoch, such as for an evaluation.

        Raises:
            DataError: A record cannot be read.
        """
        return self._from(0)

    def _from(self, step: int) -> Iterator[list[RawRecord]]:
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
        produce = partial(read_micro_batches, sequence, lanes, cut, rank=self._share.rank, step=step)
        return prefetch(lambda is_abandoned: produce(is_abandoned=is_abandoned), ahead=_AHEAD)

    def start_epoch(self, epoch: int) -> None:
        """Begin this epoch, or continue it if it is the current one."""
        self._place.start_epoch(epoch)

    def advance(self) -> None:
        """Count one optimizer step as taken.

        Raises:
            ValueError: All steps of the epoch were taken already.
        """
        self._place.advance()

    def loss_weight(self, micro_batch: int) -> float:
        """Return the factor for the mean loss of a micro-batch of the current step; see `smddp.ElasticSampler`.

        Args:
            micro_batch: From 0 to ``accumulate - 1``.
        """
        if not self._place.is_at_short_batch:
            return 1.0
        cut = self._share.partition
        return shares_of(cut).short_weight(0, self._share.rank * cut.accumulate + micro_batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, the same on every rank: a small JSON object."""
        return {**self._place.state_dict(), **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position from `state_dict`, saved at any number of ranks.

        With data sharded by host, a change of hosts raises an error or restarts the epoch, as ``on_change`` says.

        Raises:
            ValueError: The position does not fit this order, or the data changed.
        """
        own = self._identity()
        # A change of hosts or of the global batch changes the default lanes, too. Leave such a position to the
        # sampler, which refuses it with the real reason, or restarts its epoch, where any lanes fit.
        has_other_lanes = own.keys() <= state.keys() and (
            self._place.host_change(state) is not None or state.get("global_batch") != self.global_batch
        )
        if not has_other_lanes:
            refuse_other_order(state, own)
        self._place.load_state_dict({name: value for name, value in state.items() if name not in own})

    def _identity(self) -> dict[str, Any]:
        """Return the values that decide the order besides the sampler's."""
        return {"shards": ALGORITHM, "lanes": self.lanes, "window": self.window}

    def _memory(self) -> float:
        """Return the approximate bytes of the records in all windows."""
        index = self.dataset.index
        held = self.window if self._place.shuffle else self.global_batch
        return min(held, index.records) * index.size / max(index.records, 1)


class ShardEvaluation:
    """A batch sampler for ``DataLoader(dataset.decoder, batch_sampler=...)`` that yields batches of raw records.

    Each rank has one run of neighbouring records, without padding. Ranks may differ by one record, and so by one
    batch: call no collective between the batches; reduce sums and counts after the last one.
    """

    def __init__(self, dataset: ShardedDataset, *, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        """Describe the share of a rank.

        Args:
            dataset: The shards.
            batch_size: Records of a batch of this rank; the last one may be smaller.
            rank: This process's rank.
            world_size: The number of processes.

        Raises:
            ValueError: The numbers do not fit each other.
            DataError: A shard cannot be read.
        """
        self.dataset = dataset
        self._positions = EvaluationSampler(
            dataset.index.records, batch_size=batch_size, rank=rank, world_size=world_size
        )

    def __len__(self) -> int:
        """Return the number of this rank's batches."""
        return len(self._positions)

    def __iter__(self) -> Iterator[list[RawRecord]]:
        """Return an iterator over this rank's batches; a thread reads them ahead, and ends with the iterator.

        Raises:
            DataError: A record cannot be read.
        """
        return prefetch(self._read, ahead=_EVALUATION_AHEAD)

    def _read(self, is_abandoned: Callable[[], bool]) -> Generator[list[RawRecord]]:
        dataset = self.dataset
        sequence = ShardSequence(dataset.source, dataset.index.shards, largest_record=dataset.largest_record)
        with sequence.cursor() as cursor:
            for positions in self._positions:
                batch: list[RawRecord] = []
                for position in positions:
                    if is_abandoned():
                        return
                    batch.append(cursor.read(position))
                yield batch
