"""The evaluation data of one rank in shards: every record once over all ranks, in stored order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from smddp.data.formats.record import RawRecord
from smddp.data.order.sampler import EvaluationSampler
from smddp.data.shards.dataset import ShardedDataset
from smddp.data.shards.prefetch import prefetch
from smddp.data.shards.sequence import ShardSequence

_AHEAD = 4  # batches


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
        return prefetch(self._read, ahead=_AHEAD)

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
