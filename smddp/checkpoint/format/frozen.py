"""Frozen weights that a checkpoint leaves out, because the script loads them anyway: a base model that is fine-tuned.

In the place of each such weight the checkpoint has a fingerprint. A resume compares it with the script's own weight.

The fingerprint is the sum of ``word[n] * a[n % 65536] * b[n // 65536]`` modulo 2**64 over the bits of the weight, in
words of at most 32 bits; ``a`` and ``b`` are odd numbers by splitmix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014). It is a part of the format, and has three properties:
  1. One changed bit always changes it, because odd factors have an inverse.
  2. It is the same on each device.
  3. Ranks with pieces of a weight sum their own words, and add up the sums: it is the same on any number of ranks.

It finds another base model, not a forged one: who can write a checkpoint can also write its weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch

from smddp.checkpoint.format.shards import Box, division_of
from smddp.distributed import Ranks
from smddp.distributed.replica_check import words_of
from smddp.dtensor import is_dtensor, local_values
from smddp.errors import CheckpointError

_ROW = 2**16
_CPU_ROWS, _GPU_ROWS = 1, 64
"""Rows of words at a time: on a CPU their products fit the cache, on a GPU few kernels are started."""

_FIRST_OF_B = 2**32


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Stands in a state for a frozen weight that is not saved."""

    dtype: str
    """As PyTorch names it, without ``torch.``."""
    shape: tuple[int, ...]
    fingerprint: str
    """16 hexadecimal digits."""

    @classmethod
    def of(cls, weight: torch.Tensor, fingerprint: str) -> LeftOut:
        """Return what stands for a weight with this fingerprint."""
        return cls(str(weight.dtype).removeprefix("torch."), tuple(weight.shape), fingerprint)

    @classmethod
    def from_json(cls, value: Any) -> LeftOut:
        """Return what `to_json` wrote; raise CheckpointError for anything else."""
        dtype, shape, fingerprint = (value.get(each) for each in ("dtype", "shape", "fingerprint"))
        is_shape = isinstance(shape, list) and all(type(each) is int and each >= 0 for each in shape)
        if not (isinstance(dtype, str) and is_shape and isinstance(fingerprint, str)):
            raise CheckpointError(f"a weight that was left out is not described as it should be: {str(value)[:100]}")
        return cls(dtype, tuple(shape), fingerprint)

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {"dtype": self.dtype, "shape": list(self.shape), "fingerprint": self.fingerprint}


def fingerprints(weights: Mapping[str, torch.Tensor], ranks: Ranks, *, in_pieces: bool) -> dict[str, str]:
    """Return the fingerprint of each weight, by its name; collective if the ranks have pieces. It waits for a GPU.

    Raise CheckpointError if the ranks have other names.
    """

    def sums() -> dict[str, int]:
        found = {name: _sum_of(each, ranks.rank) for name, each in weights.items()}
        by_device: dict[torch.device, list[str]] = {}
        for name, each in found.items():
            by_device.setdefault(each.device, []).append(name)
        return {
            name: total
            for names in by_device.values()
            for name, total in zip(names, torch.stack([found[name] for name in names]).tolist(), strict=True)
        }

    # Inside of the action of `gather`: an error on one rank would leave the others waiting there.
    of_ranks = ranks.gather(sums) if in_pieces else [sums()]
    if other := next(
        (each.keys() ^ of_ranks[0].keys() for each in of_ranks if each.keys() != of_ranks[0].keys()), None
    ):
        raise CheckpointError(f"{min(other)} is frozen on some ranks only: freeze the same weights on all ranks")
    own = of_ranks[ranks.rank if in_pieces else 0]
    totals = {
        name: sum(each[name] for each in of_ranks) if is_dtensor(weight) else own[name]
        for name, weight in weights.items()
    }
    return {name: f"{total % 2**64:016x}" for name, total in totals.items()}


def _sum_of(weight: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the sum over the words that this rank adds, a scalar on the weight's device."""
    values, box, shape = local_values(weight.detach()), Box.whole(weight.shape), tuple(weight.shape)
    if is_dtensor(weight):
        division = division_of(weight)
        box = division.own
        piece = next((each for each in division.pieces if each.box == box), None)
        if piece is None or piece.ranks[0] != rank:  # it has no values, or another rank adds the same ones
            return torch.zeros((), dtype=torch.int64, device=values.device)
    words, runs = words_of(values), list(_runs(box, shape))
    words_each = len(words) // max(values.numel(), 1)
    sums = [_sum(run, offset * words_each) for offset, run in zip(runs, words.chunk(len(runs)), strict=True)]
    return torch.stack(sums).sum()


def _runs(box: Box, shape: tuple[int, ...]) -> Iterator[int]:
    """Yield the number, in the whole tensor, of the first value of each run of values that lie together there."""
    cut = [number for number, extent in enumerate(shape) if box.shape[number] != extent]
    last = cut[-1] if cut else 0
    outer = [range(start, start + extent) for start, extent in zip(box.start[:last], box.shape[:last], strict=True)]
    for index in product(*outer):
        yield sum(
            at * math.prod(shape[number + 1 :]) for number, at in enumerate((*index, *box.start[last : last + 1]))
        )


def _sum(words: torch.Tensor, offset: int) -> torch.Tensor:
    """Return the sum for flat words, of which the first is the weight's word number ``offset``."""
    a = _factors_of_a_row(words.device)
    most = _CPU_ROWS if words.device.type == "cpu" else _GPU_ROWS
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    at = 0
    while at < len(words):
        row, column = divmod(offset + at, _ROW)
        rows = 0 if column else min((len(words) - at) // _ROW, most)
        count = rows * _ROW or min(_ROW - column, len(words) - at)
        block = words[at : at + count].view(max(rows, 1), -1)
        b = torch.from_numpy(_odd_numbers(_FIRST_OF_B + row, len(block))).to(words.device)
        total += ((block * a[column : column + block.shape[1]]).sum(1) * b).sum()  # in int64, which wraps around
        at += count
    return total


@cache
def _factors_of_a_row(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(_odd_numbers(0, _ROW)).to(device)


def _odd_numbers(first: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the numbers ``first`` to ``first + count - 1`` of splitmix64, made odd."""
    state = (np.arange(first + 1, first + count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)).view(np.int64)
