"""The order of records in shards: a pure function of seed, epoch and position that is cheap to read from.

1. The shards, permuted, form one sequence of N records.
2. The whole global batches of that sequence are cut into `lanes` equal streams.
3. Each optimizer step takes the same number of records from each lane, lane after lane. So a rank reads its own lanes
   in sequence if the number of ranks divides the lanes, and any number of ranks yields the same global batches.
4. Within a lane, each block of neighbouring records is permuted by itself. A block is a window of the shuffle; a resume
   reads at most one of them again.
5. A rank reads its micro-batches from its lanes in turn, one block of the shuffle ahead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from smddp.data.formats.record import RawRecord
from smddp.data.order.data_order import Partition
from smddp.data.shards.shard import Cursor, ShardSequence

ALGORITHM = 1
"""The version of the order, which checkpoints record. Changing anything below makes a new version."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Interleave:
    """The order of one epoch."""

    records: int
    """The number of records in all shards."""
    global_batch: int
    """Samples of an optimizer step, a multiple of the lanes."""
    lanes: int
    """The number of streams that all ranks together read at a time."""
    window: int
    """The shuffle window in records, over all lanes."""
    seed: int
    epoch: int
    shuffle: bool

    @property
    def steps(self) -> int:
        """The number of whole global batches in an epoch."""
        return self.records // self.global_batch

    @property
    def stride(self) -> int:
        """The number of records of each lane in one step."""
        return self.global_batch // self.lanes

    @property
    def length(self) -> int:
        """The number of records in each lane."""
        return self.steps * self.stride

    @property
    def block(self) -> int:
        """Records of a lane that are permuted together; without a shuffle, the records of a step."""
        return max(1, self.window // self.lanes) if self.shuffle else self.stride

    def shard_order(self, count: int) -> list[int]:
        """Return the numbers of ``count`` shards in the epoch's order."""
        if not self.shuffle:
            return list(range(count))
        return self._permuted(count, "shards")

    def blocks(self, lane: int, slots: range, step: int) -> Iterator[list[int]]:
        """Yield a list of sequence positions for each block of a lane, in the epoch's order, from a step on.

        ``slots`` selects from the ``stride`` records of each step; a list may be empty.
        """
        for first in range(step * self.stride // self.block * self.block, self.length, self.block):
            last = min(first + self.block, self.length)
            places = self._block(lane, first, last)
            yield [
                places[position - first]
                for position in range(max(first, step * self.stride), last)
                if position % self.stride in slots
            ]

    def places(self, positions: Iterable[int]) -> Iterator[int]:
        """Yield the sequence position of the record at each position of the epoch's order."""
        held, places = (-1, -1), []
        for position in positions:
            step, slot = divmod(position, self.global_batch)
            if step >= self.steps:
                yield position
                continue
            lane, slot = divmod(slot, self.stride)
            in_lane = step * self.stride + slot
            first = in_lane // self.block * self.block
            if held != (lane, first):  # neighbours are mostly in one block
                held, places = (lane, first), self._block(lane, first, min(first + self.block, self.length))
            yield places[in_lane - first]

    def _block(self, lane: int, first: int, last: int) -> list[int]:
        start, size = lane * self.length + first, last - first
        if not self.shuffle:
            return list(range(start, start + size))
        return [start + place for place in self._permuted(size, f"lane {lane}, record {first}")]

    def _permuted(self, size: int, what: str) -> list[int]:
        """Return the numbers below size, sorted by random keys of this epoch.

        A `Permutation` needs no memory, but a small block takes it as long as 10,000 numbers.
        """
        text = f"smddp shards {ALGORITHM}: seed {self.seed}, epoch {self.epoch}, {what}"
        keys = np.frombuffer(hashlib.shake_256(text.encode()).digest(8 * size), dtype="<u8")
        return list(map(int, np.argsort(keys, kind="stable")))


class _AbandonedError(Exception):
    """The reader no longer wants the records."""


def read_micro_batches(
    sequence: ShardSequence,
    lanes: Interleave,
    cut: Partition,
    *,
    rank: int,
    step: int,
    is_abandoned: Callable[[], bool],
) -> Generator[list[RawRecord]]:
    """Yield the micro-batches of a rank from ``step`` to the end of the epoch; files are open only while it runs.

    The ranks' shares of a global batch are neighbours, and so are the micro-batches of a rank. Raise DataError if a
    record cannot be read, _AbandonedError once ``is_abandoned`` returns True (asked before each record).
    """

    def read(cursor: Cursor, place: int) -> RawRecord:
        if is_abandoned():
            raise _AbandonedError
        return cursor.read(place)

    with ExitStack() as stack:
        share = lanes.global_batch // cut.world_size
        streams = []
        for lane, slots in _slots(lanes, range(rank * share, (rank + 1) * share)):
            blocks = lanes.blocks(lane, slots, step)
            streams.append(
                (stack.enter_context(closing(_lane(sequence, blocks, (lane + 1) * lanes.length, read))), len(slots))
            )
        for _ in range(step, lanes.steps):
            records = [record for stream, count in streams for record in islice(stream, count)]
            size = share // cut.accumulate
            assert len(records) == share, (len(records), share)
            yield from (records[start : start + size] for start in range(0, share, size))
    if max(step, lanes.steps) < cut.steps:
        yield from _last(sequence, lanes, cut, rank, read)


def shares_of(cut: Partition) -> Partition:
    """Return the same partition with all shares on one rank, in the order of the ranks."""
    return replace(cut, world_size=1, accumulate=cut.shares)


def _slots(lanes: Interleave, slots: range) -> Iterator[tuple[int, range]]:
    """Yield each lane that overlaps ``slots``, with the overlap counted from the lane's start."""
    for lane in range(slots.start // lanes.stride, (slots.stop - 1) // lanes.stride + 1):
        start = lane * lanes.stride
        yield lane, range(max(slots.start - start, 0), min(slots.stop - start, lanes.stride))


_Read = Callable[[Cursor, int], RawRecord]


def _lane(sequence: ShardSequence, blocks: Iterable[list[int]], stop: int, read: _Read) -> Generator[RawRecord]:
    """Yield the records of a lane, block after block.

    For each record it yields, it reads one of the next block: reading is steady, and memory stays at one block.
    """
    with sequence.cursor(stop=stop) as cursor:
        order: list[int] = []
        held: dict[int, RawRecord] = {}
        for following in blocks:
            next_held: dict[int, RawRecord] = {}
            places = iter(sorted(following))
            for place in order:
                yield held.pop(place)
                if (ahead := next(places, None)) is not None:
                    next_held[ahead] = read(cursor, ahead)
            for ahead in places:
                next_held[ahead] = read(cursor, ahead)
            order, held = following, next_held
        yield from (held.pop(place) for place in order)


def _last(
    sequence: ShardSequence, lanes: Interleave, cut: Partition, rank: int, read: _Read
) -> Generator[list[RawRecord]]:
    """Yield the last step if it is short or wrapped."""
    shares = shares_of(cut)
    if cut.short:
        all_positions = [positions.tolist() for positions in shares.short_positions(0)]
    else:
        all_positions = shares.positions(range(cut.steps - 1, cut.steps), 0)[0].tolist()
    mine = all_positions[rank * cut.accumulate : (rank + 1) * cut.accumulate]
    places = [list(lanes.places(positions)) for positions in mine]
    with sequence.cursor() as cursor:
        held = {place: read(cursor, place) for place in sorted({place for each in places for place in each})}
    yield from ([held[place] for place in each] for each in places)
