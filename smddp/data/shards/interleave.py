"""The order of records in shards: a pure function of seed, epoch and position that is cheap to read from.

1. The shards, permuted, form one sequence of N records.
2. The whole global batches of that sequence are cut into `lanes` equal streams.
3. Each optimizer step takes the same number of records from each lane, lane after lane. So a rank reads its own lanes
   in sequence if the number of ranks divides the lanes, and any number of ranks yields the same global batches.
4. Within a lane, each block of neighbouring records is permuted by itself. A block is a window of the shuffle; a resume
   reads at most one of them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

ALGORITHM = 1
"""The version of the order, which checkpoints record. Changing anything below makes a new version."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Interleave:
    """The order of one epoch."""

    records: int
    """All records."""
    global_batch: int
    """Samples of an optimizer step, a multiple of the lanes."""
    lanes: int
    """Streams read at a time, over all ranks."""
    window: int
    """The shuffle window in records, over all lanes."""
    seed: int
    epoch: int
    shuffle: bool

    @property
    def steps(self) -> int:
        """Whole global batches of an epoch."""
        return self.records // self.global_batch

    @property
    def stride(self) -> int:
        """Records of each lane in a step."""
        return self.global_batch // self.lanes

    @property
    def length(self) -> int:
        """Records of each lane."""
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
        """Yield the sequence positions of the records at some positions of the epoch's order."""
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
