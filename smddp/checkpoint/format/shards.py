"""Tensors whose values are divided among ranks: the pieces of each, who has them, and how they fit together.

A DTensor is divided along some dimensions over the dimensions of its mesh, by ``Shard`` and ``Replicate``. Each piece
is a box of the whole tensor. All ranks compute the same pieces without communication:

1. `fully_shard` over tensor parallelism divides what is divided already. Its ``_StridedShard`` stands before the
   ``Shard`` of tensor parallelism, and is counted after it.
2. A mesh may be a slice of one, such as ``mesh["data"]`` of ``("data", "tensor")``. Each rank then knows its own slice
   alone. All slices have the same pieces, and the first one, which each rank computes, saves them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import torch

from smddp.dtensor import first_slice, is_dtensor, local_values
from smddp.errors import CheckpointError

_SUPPORTED = ("Shard", "_StridedShard", "Replicate")


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor: from ``start``, as far as ``shape``, in each dimension."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Iterable[int]) -> Box:
        """Return the box of all of a tensor."""
        extents = tuple(shape)
        return cls((0,) * len(extents), extents)

    @property
    def size(self) -> int:
        """The number of values in it."""
        return math.prod(self.shape)

    def overlap(self, other: Box) -> Box | None:
        """Return what both have, or None."""
        start = tuple(map(max, self.start, other.start))
        ends = [min(sum(one), sum(two)) for one, two in zip(self._edges(), other._edges(), strict=True)]
        shape = tuple(end - begin for end, begin in zip(ends, start, strict=True))
        return Box(start, shape) if all(each > 0 for each in shape) else None

    def shifted(self, distance: Sequence[int]) -> Box:
        """Return the box that begins further on by a distance in each dimension."""
        return Box(tuple(begin + each for begin, each in zip(self.start, distance, strict=True)), self.shape)

    def in_order(self, most: int) -> Iterator[Box]:
        """Divide it into boxes of at most so many values. They are in the order of a contiguous tensor's values."""
        if self.size <= most:
            yield self
            return
        # The first dimension of which one index fits. Each index of the dimensions before it is a box of its own.
        cut = next(number for number in range(len(self.shape)) if math.prod(self.shape[number + 1 :]) <= most)
        step = most // math.prod(self.shape[cut + 1 :])
        for index in product(*map(range, self.shape[:cut])):
            for begin in range(0, self.shape[cut], step):
                start = (*index, begin, *(0 for _ in self.shape[cut + 1 :]))
                extent = min(step, self.shape[cut] - begin)
                yield Box(start, (*(1 for _ in index), extent, *self.shape[cut + 1 :])).shifted(self.start)

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Return the index of this box in a tensor that holds ``outer``."""
        begins = [start - origin for start, origin in zip(self.start, outer.start, strict=True)]
        return tuple(slice(begin, begin + extent) for begin, extent in zip(begins, self.shape, strict=True))

    def _edges(self) -> Iterable[tuple[int, int]]:
        return zip(self.start, self.shape, strict=True)


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor, and the ranks that have it, of which one saves it."""

    box: Box
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """How a DTensor is divided among the ranks of its mesh."""

    own: Box
    """The box of this rank; empty outside of the mesh."""
    pieces: tuple[Piece, ...]
    """The pieces that have values, the same on all ranks and in the same order."""
    why_unsupported: str | None
    """The reason, for people, why these boxes are not what the ranks have; None if they are."""


def division_of(tensor: torch.Tensor) -> Division:
    """Return how a DTensor is divided."""
    return _division(tensor.shape, tensor.placements, tensor.device_mesh)  # type: ignore[attr-defined]


def with_layout_of(target: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return a DTensor of these local values, divided as ``target`` is."""
    make: Any = type(target).from_local  # type: ignore[attr-defined]
    return make(  # type: ignore[no-any-return]
        values.to(local_values(target).device),
        target.device_mesh,  # type: ignore[attr-defined]
        target.placements,  # type: ignore[attr-defined]
        run_check=False,
        shape=target.shape,
        stride=target.stride(),
    )


def take_piece(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copy this rank's piece into a DTensor, from whole values or from a DTensor that is divided alike."""
    box = division_of(target).own.within(Box.whole(values.shape))
    piece = local_values(values) if is_dtensor(values) else values[box]
    with torch.no_grad():
        local_values(target).copy_(piece)


def check_boxes(name: str, shape: Sequence[int], boxes: Sequence[Box]) -> None:
    """Raise CheckpointError unless the boxes, of as many dimensions as the shape, fill a tensor of it exactly.

    They are untrusted. They must form a grid, so that one look at each is enough.
    """
    edges = [sorted({0, extent, *(box.start[number] for box in boxes)}) for number, extent in enumerate(shape)]
    after = [dict(zip(each, [*each[1:], each[-1]], strict=True)) for each in edges]
    found = {box.start for box in boxes}
    fits = (
        all((each[0], each[-1]) == (0, extent) for each, extent in zip(edges, shape, strict=True))
        and len(found) == len(boxes) == math.prod(len(each) - 1 for each in edges)
        and all(
            extent > 0 and start in ends and ends[start] == start + extent
            for box in boxes
            for start, extent, ends in zip(box.start, box.shape, after, strict=True)
        )
    )
    if not fits:
        raise CheckpointError(f"the pieces of {name[:100]!r} do not fill its shape {list(shape)} exactly")


@lru_cache(maxsize=8192)  # a save asks for every tensor while training waits
def _division(shape: tuple[int, ...], placements: tuple[Any, ...], mesh: Any) -> Division:
    sizes, coordinate = tuple(mesh.shape), mesh.get_coordinate()
    ranks_of: dict[Box, list[int]] = {}
    for at, rank in zip(product(*map(range, sizes)), first_slice(mesh), strict=True):
        ranks_of.setdefault(_box(shape, placements, sizes, at), []).append(rank)
    outside = Box((0,) * len(shape), (0,) * len(shape))
    return Division(
        own=outside if coordinate is None else _box(shape, placements, sizes, tuple(coordinate)),
        pieces=tuple(Piece(box, tuple(ranks)) for box, ranks in ranks_of.items() if box.size),
        why_unsupported=why_unsupported(placements, sizes),
    )


def why_unsupported(placements: Sequence[Any], sizes: Sequence[int]) -> str | None:
    """Return why the boxes of these placements are not what the ranks have; None if they are."""
    kinds = list(map(_kind, placements))
    if other := [each for each in kinds if each not in _SUPPORTED]:
        return f"a DTensor with the placement {other[0]}; Shard and Replicate can be saved"
    for number, (kind, placement) in enumerate(zip(kinds, placements, strict=True)):
        if kind == "_StridedShard":
            after = range(number + 1, len(kinds))
            inner = [each for each in after if "Shard" in kinds[each] and placements[each].dim == placement.dim]
            parts = math.prod(sizes[each] for each in inner)
            if placement.split_factor != parts or any(kinds[each] == kind for each in inner):
                return f"a DTensor with the placements {placements}; fully_shard over tensor parallelism can be saved"
    return None


def _box(
    shape: tuple[int, ...], placements: tuple[Any, ...], sizes: tuple[int, ...], coordinate: tuple[int, ...]
) -> Box:
    """Return the box of the rank at a coordinate of the mesh; each chunk but the last ones is equally large."""
    start, extents = [0] * len(shape), list(shape)
    of_dimensions = list(zip(map(_kind, placements), placements, sizes, coordinate, strict=True))
    for kind, placement, parts, at in sorted(of_dimensions, key=lambda each: each[0] == "_StridedShard"):  # note 1
        if "Shard" in kind:
            number = placement.dim % len(shape)
            chunk = -(-extents[number] // parts)
            begin = min(at * chunk, extents[number])
            start[number] += begin
            extents[number] = min(chunk, extents[number] - begin)
    return Box(tuple(start), tuple(extents))


def _kind(placement: object) -> str:
    # By name: the classes have moved between PyTorch's modules, and importing them takes a second.
    return type(placement).__name__
