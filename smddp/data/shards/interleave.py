"""The order of records in shards: a pure function of seed, epoch and position, that is cheap to read from.

All shards, permuted, are one sequence of N records. What is left of it by whole global batches is cut into `lanes`
equal streams, and each optimizer step takes as many records of each lane, lane after lane. So a rank reads its own
lanes, in sequence, where the ranks divide the lanes; and any number of ranks gives the same global batches. Within a
lane each block of neighbouring records is permuted by itself: a window of the shuffle, of which a resume reads again
one at most.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

ALGORITHM = 1
"""The version of the order. Checkpoints record it: a change of anything below is a new version."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Interleave:
    """The order of one epoch."""

    records: int
    """All records."""
    global_batch: int
    """Samples an optimizer step; it divides by the lanes."""
    lanes: int
    """How many streams are read at a time, over all ranks."""
    window: int
    """Records among which one is shuffled, over all lanes."""
    seed: int
    epoch: int
    shuffle: bool

    @property
    def steps(self) -> int:
        """Whole global batches."""
        return self.records // self.global_batch

    @property
    def stride(self) -> int:
        """Records of each lane a step."""
        return self.global_batch // self.lanes

    @property
    def length(self) -> int:
        """Records of each lane."""
        return self.steps * self.stride

    @property
    def block(self) -> int:
        """Records of a lane that are permuted among each other; without a shuffle, those of a step."""
        return max(1, self.window // self.lanes) if self.shuffle else self.stride

    def shard_order(self, count: int) -> list[int]:
        """Give the numbers of so many shards in the epoch's order."""
        if not self.shuffle:
            return list(range(count))
        return self._permuted(count, "shards")

    def blocks(self, lane: int, slots: range, step: int) -> Iterator[list[int]]:
        """Give where the records of some slots of a lane lie in the sequence of all, from a step on.

        Args:
            lane: Whose records.
            slots: Which of the ``stride`` records of each step.
            step: The first step.

        Returns:
            For each block of the lane a list, in the epoch's order; it may be empty.
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
        """Give where the records at some positions of the epoch's order lie in the sequence of all."""
        held, places = (-1, -1), []
        for position in positions:
            step, slot = divmod(position, self.global_batch)
            if step >= self.steps:
                yield position
                continue
            lane, slot = divmod(slot, self.stride)
            in_lane = step * self.stride + slot
            first = in_lane // self.block * self.block
            if held != (lane, first):  # neighbours mostly lie in one block
                held, places = (lane, first), self._block(lane, first, min(first + self.block, self.length))
            yield places[in_lane - first]

    def _block(self, lane: int, first: int, last: int) -> list[int]:
        start, size = lane * self.length + first, last - first
        if not self.shuffle:
            return list(range(start, start + size))
        return [start + place for place in self._permuted(size, f"lane {lane}, record {first}")]

    def _permuted(self, size: int, what: str) -> list[int]:
        """Return the numbers below size, sorted by random keys of this epoch.

        A `Permutation` needs no memory, but takes as long for a small block as for 10,000 numbers.
        """
        text = f"smddp shards {ALGORITHM}: seed {self.seed}, epoch {self.epoch}, {what}"
        keys = np.frombuffer(hashlib.shake_256(text.encode()).digest(8 * size), dtype="<u8")
        return list(map(int, np.argsort(keys, kind="stable")))
