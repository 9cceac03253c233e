"""A keyed pseudo-random permutation of range(size), computed index by index in constant memory.

It returns the sample at position p of an epoch for any p directly, so a run can start anywhere in an epoch of
any size without building, or agreeing on, a list of indices. It is for shuffling, not a cipher.

How it works:

1. The positions fill a rectangle of ``columns x rows`` cells that is barely larger than ``size``.
2. Each of sixteen rounds of a Feistel network shifts either a cell's column by a keyed hash of its row, or its
   row by a keyed hash of its column. Each shift can be undone, so the network is a bijection of the rectangle.
3. The few results beyond ``size`` go through the network again until they are below it (cycle walking; Black
   and Rogaway, "Ciphers with arbitrary finite domains", 2002).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALGORITHM = 1
"""The version of the order, which checkpoints record. Changing any number below makes a new version."""

LARGEST_SIZE = 2**63

_ROUNDS = 16  # with fewer rounds, some orders of 5 samples are more frequent than others
_BLOCK = 1 << 14  # positions worked on at a time: small enough for the processor's cache
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)  # of SplitMix64 (Steele, Lea, Flood, 2014)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)


@dataclass(kw_only=True, slots=True, frozen=True)
class Permutation:
    """The order of one epoch: a bijection of range(size), a function of the three fields alone."""

    size: int
    """The number of positions and of samples: 1 to 2**63."""
    seed: int = 0
    """The run's seed. Any integer."""
    epoch: int = 0
    """Hashed together with the seed: seed 1, epoch 1 is not seed 2, epoch 0."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= LARGEST_SIZE:
            raise ValueError(f"size is {self.size}: a permutation has 1 to 2**63 positions")

    def permute(self, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the samples at these positions, both from 0 to size - 1, in an array of the same shape.

        Large arrays cost the least for each index. Raise ValueError if a position is out of range.
        """
        asked = np.asarray(positions)
        if asked.size and not (int(asked.min()) >= 0 and int(asked.max()) < self.size):
            raise ValueError(f"positions go from {asked.min()} to {asked.max()}, the order from 0 to {self.size - 1}")
        samples = asked.astype(np.uint64).ravel()
        keys = self._keys()
        for start in range(0, samples.size, _BLOCK):
            block = samples[start : start + _BLOCK]
            self._shuffle(block, keys)
            while (outside := np.flatnonzero(block >= self.size)).size:
                walking = block[outside]
                self._shuffle(walking, keys)
                block[outside] = walking
        return samples.astype(np.int64).reshape(asked.shape)

    def _keys(self) -> NDArray[np.uint64]:
        text = f"smddp permutation {ALGORITHM}: seed {self.seed}, epoch {self.epoch}, size {self.size}"
        digest = hashlib.shake_256(text.encode()).digest(8 * _ROUNDS)
        return np.frombuffer(digest, dtype="<u8").astype(np.uint64)

    def _shuffle(self, cells: NDArray[np.uint64], keys: NDArray[np.uint64]) -> None:
        """Map each cell of the rectangle to its image, in place."""
        root = math.isqrt(self.size - 1) + 1
        columns = np.uint64(root + root % 2)  # even: in an odd rectangle all shifts are even permutations
        rows = np.uint64(-(-self.size // int(columns)))
        row, column = np.divmod(cells, columns)
        shift, scratch = np.empty_like(cells), np.empty_like(cells)
        for even, odd in zip(keys[0::2], keys[1::2], strict=True):
            _add_hash(column, row, even, columns, shift, scratch)
            _add_hash(row, column, odd, rows, shift, scratch)
        np.multiply(row, columns, out=cells)
        np.add(cells, column, out=cells)


def _add_hash(
    moved: NDArray[np.uint64],
    fixed: NDArray[np.uint64],
    key: np.uint64,
    modulus: np.uint64,
    shift: NDArray[np.uint64],
    scratch: NDArray[np.uint64],
) -> None:
    """Set ``moved`` to ``(moved + hash(fixed)) % modulus``, in place and without a division."""
    np.add(fixed, key, out=shift)
    np.multiply(shift, _FIRST_MULTIPLIER, out=shift)
    np.right_shift(shift, _HALF, out=scratch)
    np.bitwise_xor(shift, scratch, out=shift)
    np.multiply(shift, _SECOND_MULTIPLIER, out=shift)
    np.right_shift(shift, _HALF, out=shift)
    np.multiply(shift, modulus, out=shift)  # 32 random bits times a modulus below 2**32 ...
    np.right_shift(shift, _HALF, out=shift)  # ... divided by 2**32 lie in range(modulus)
    np.add(moved, shift, out=moved)
    np.subtract(moved, modulus, out=scratch)  # wraps to a huge number if moved < modulus
    np.minimum(moved, scratch, out=moved)
