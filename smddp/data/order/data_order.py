"""An order of data: the samples of each micro-batch of this rank, the position, and the division of an epoch.

The order lives in the main process of each rank; a loader's workers only fetch and decode. An order is a batch sampler
for ``torch.utils.data.DataLoader(dataset, batch_sampler=order)``: any number of workers gives the same batches, and a
batch fetched ahead does not count. Only `DataOrder.advance` moves the position.

The division is pure arithmetic on positions, without samples or progress. An optimizer step takes ``global_batch``
positions in a row; share ``micro_batch * world_size + rank`` of them is one micro-batch of a rank.

An epoch's order is a keyed pseudo-random permutation of range(size), computed index by index in constant memory. So a
run can start anywhere in an epoch of any size without building, or agreeing on, a list of indices. It is for shuffling,
not a cipher:

1. The positions fill a rectangle of ``columns x rows`` cells that is barely larger than ``size``.
2. Each of sixteen rounds of a Feistel network shifts either a cell's column by a keyed hash of its row, or its
   row by a keyed hash of its column. Each shift can be undone, so the network is a bijection of the rectangle.
3. The few results beyond ``size`` go through the network again until they are below it (cycle walking; Black
   and Rogaway, "Ciphers with arbitrary finite domains", 2002).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol, get_args

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


Tail = Literal["drop", "short", "wrap"]
"""What happens to the samples behind the last whole global batch. ``drop`` leaves them out of this epoch; ``short``
makes a smaller last batch of them; ``wrap`` fills that batch with the first samples of the epoch's order, which then
come twice."""


class DataOrder(Protocol):
    """The training data of one rank, with a position that a checkpoint keeps."""

    global_batch: int
    """Samples an optimizer step, over all ranks and micro-batches."""

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        ...

    @property
    def consumed(self) -> int:
        """Samples of this epoch in batches that the loop has finished, over all ranks."""
        ...

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in a whole epoch, the same on all ranks; None if unknown before the epoch's end."""
        ...

    def __len__(self) -> int:
        """Return the number of this rank's micro-batches left in the epoch; raise TypeError if it is not known yet."""
        ...

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield this rank's micro-batches, from the first step not taken; ``accumulate`` lists in a row are a step."""
        ...

    def whole_epoch(self) -> Iterator[list[Any]]:
        """Yield all of this rank's micro-batches of the current epoch, wherever the position is."""
        ...

    def start_epoch(self, epoch: int) -> None:
        """Begin this epoch, or continue it if it is the current one; raise ValueError if it is negative."""
        ...

    def advance(self) -> None:
        """Count one optimizer step as taken; raise ValueError if all steps of the epoch were taken already."""
        ...

    def loss_weight(self, micro_batch: int) -> float:
        """Return the factor for the mean loss of micro-batch 0 to ``accumulate - 1`` of the current step, on this rank.

        With this factor, the division by ``accumulate`` and DDP's mean over the ranks, the step's gradient is the
        gradient of the mean over its samples. The factor is 1.0 except in a short last batch; there it is 0.0 for a
        micro-batch that only repeats a sample so that this rank takes part.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, the same on every rank: a small JSON object."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position from `state_dict`, saved at any number of ranks; raise ValueError if it does not fit."""
        ...


@dataclass(kw_only=True, slots=True, frozen=True)
class Partition:
    """The division of an epoch into steps and micro-batches. Fields that do not fit raise ValueError."""

    size: int
    """Samples of the dataset: 1 to 2**63."""
    global_batch: int
    """Samples of an optimizer step, over all ranks and micro-batches."""
    world_size: int = 1
    """The number of ranks that share a step."""
    accumulate: int = 1
    """Micro-batches of an optimizer step on each rank."""
    tail: Tail = "drop"
    """What to do with the last ``size % global_batch`` samples of the order."""

    def __post_init__(self) -> None:
        if self.tail not in get_args(Tail):
            raise ValueError(f"tail is {self.tail!r}: give one of {', '.join(map(repr, get_args(Tail)))}")
        if not 1 <= self.size <= LARGEST_SIZE:
            raise ValueError(f"size is {self.size}: a dataset to train on has 1 to 2**63 samples")
        if self.accumulate < 1:
            raise ValueError(f"accumulate is {self.accumulate}: an optimizer step has at least one micro-batch")
        if self.global_batch < 1:
            raise ValueError(f"global_batch (batch_size) is {self.global_batch}: a step has at least one sample")
        if self.global_batch % self.shares:
            nearest = _nearest_multiples(self.global_batch, self.shares)
            raise ValueError(
                f"global_batch (batch_size) is {self.global_batch}: it must be divisible by world_size * accumulate = "
                f"{self.world_size} * {self.accumulate} = {self.shares}; the nearest are {nearest}"
            )
        if self.global_batch > self.size and self.tail == "drop":
            raise ValueError(
                f"global_batch is {self.global_batch}, but the dataset has only {self.size} samples, not one whole "
                f'batch; choose a global_batch of at most {self.size}, or tail="short"'
            )

    @property
    def shares(self) -> int:
        """Micro-batches of a step, over all ranks."""
        return self.world_size * self.accumulate

    @property
    def steps(self) -> int:
        """Optimizer steps in an epoch."""
        whole, rest = divmod(self.size, self.global_batch)
        return whole if self.tail == "drop" or not rest else whole + 1

    @property
    def end(self) -> int:
        """Samples that all steps of an epoch take; samples that come twice count twice."""
        return self.size if self.tail == "short" else self.steps * self.global_batch

    @property
    def short(self) -> int:
        """Samples in a short last batch; 0 if the last batch is whole."""
        return self.end % self.global_batch

    def positions(self, steps: range, rank: int) -> NDArray[np.uint64]:
        """Return one rank's positions in whole steps, in an array of shape (steps, accumulate, micro-batch size)."""
        micro_batch = self.global_batch // self.shares
        first = (np.arange(self.accumulate) * self.world_size + rank) * micro_batch
        pieces = (first[:, np.newaxis] + np.arange(micro_batch)).astype(np.uint64)
        starts = np.arange(steps.start, steps.stop, dtype=np.uint64) * np.uint64(self.global_batch)
        positions = starts[:, np.newaxis, np.newaxis] + pieces
        return positions % np.uint64(self.size) if self.tail == "wrap" else positions

    def short_positions(self, rank: int) -> Iterator[NDArray[np.uint64]]:
        """Yield one rank's positions in the short last batch, one array for each micro-batch.

        The shares are as even as possible. DDP needs every rank in every step, so a rank with an empty share repeats
        the first sample of the batch, and `short_weight` gives it weight 0.
        """
        start = self.end - self.short
        for micro_batch in range(self.accumulate):
            offsets = self._short_share(rank, micro_batch) or range(1)
            yield np.array([start + offset for offset in offsets], dtype=np.uint64)

    def short_weight(self, rank: int, micro_batch: int) -> float:
        """Return the factor for a micro-batch's mean loss in the short last batch: all samples weigh the same."""
        return len(self._short_share(rank, micro_batch)) * self.shares / self.short

    def _short_share(self, rank: int, micro_batch: int) -> range:
        share = micro_batch * self.world_size + rank
        return range(self.short * share // self.shares, self.short * (share + 1) // self.shares)


def _nearest_multiples(number: int, of: int) -> str:
    below = max(number // of, 0) * of
    return " and ".join(str(multiple) for multiple in (below, below + of) if multiple > 0)


class MicroBatches(Iterator[list[int]]):
    """Yields a list of indices for each micro-batch of one rank, from a given step to the end of the epoch.

    The sampler counts the optimizer steps and is saved in checkpoints; this iterator is not. Its state is the position
    after the last micro-batch it returned. torchdata's StatefulDataLoader stores that state with each batch, so it
    knows the last batch it returned although its workers fetch ahead.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        rank: int,
        order: Permutation | None,
        step: int,
        loaded: Callable[[int], None],
    ) -> None:
        """Begin at ``step``, counted from 0; the epoch's number of steps leaves no batch.

        Without an ``order``, position n is sample n. `load_state_dict` calls ``loaded`` with the number of whole steps
        before the new position.
        """
        self._partition = partition
        self._rank = rank
        self._order = order
        self._loaded = loaded
        self._go_to(step, 0)

    def __next__(self) -> list[int]:
        """Return the next micro-batch."""
        indices = next(self._left)
        self._given += 1
        return indices

    def state_dict(self) -> dict[str, int]:
        """Return the position: whole steps of the epoch returned so far, and micro-batches of the next step."""
        step, micro_batch = divmod(self._given, self._partition.accumulate)
        cut = {"accumulate": self._partition.accumulate, "world_size": self._partition.world_size}
        return {"step": step, "micro_batch": micro_batch, **cut}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a position in this epoch; all steps before it count as taken.

        Raise ValueError if the position is inside a step that has another number of ranks or micro-batches here.
        """
        here = (self._partition.accumulate, self._partition.world_size)
        if state["micro_batch"] and (state["accumulate"], state["world_size"]) != here:
            raise ValueError(
                f"the loader's state was saved inside an optimizer step of {state['accumulate']} micro-batches on each "
                f"of {state['world_size']} ranks, this run has {here[0]} on each of {here[1]}: resume with the same "
                "numbers, or save the state between two steps"
            )
        self._go_to(state["step"], state["micro_batch"])
        self._loaded(state["step"])

    def _go_to(self, step: int, micro_batch: int) -> None:
        self._given = step * self._partition.accumulate + micro_batch
        self._left = islice(self._from(step), micro_batch, None)

    def _from(self, step: int) -> Iterator[list[int]]:
        cut, rank, order = self._partition, self._rank, self._order
        whole = cut.end // cut.global_batch
        steps_a_block = max(1, _BLOCK * cut.world_size // cut.global_batch)
        for block in range(step, whole, steps_a_block):
            positions = cut.positions(range(block, min(block + steps_a_block, whole)), rank)
            samples = positions if order is None else order.permute(positions)
            yield from samples.reshape(-1, positions.shape[-1]).tolist()
        if cut.short and step <= whole:
            for positions in cut.short_positions(rank):
                yield (positions if order is None else order.permute(positions)).tolist()
