"""Divides the replicated tensors among the ranks that write them.

A pure function of names and sizes, so that every rank computes the same answer without communication. Whole tensors go,
largest first, to the writer with the fewest bytes so far (Graham's longest-processing-time rule): no writer gets more
than a fair share and one tensor.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Set
from dataclasses import dataclass

from smddp.checkpoint.format.names import file_names

WHOLE_BELOW = 2**20
"""Bytes. The first writer writes a smaller part alone: another file would cost more than it saves."""

_NONE: Mapping[str, Set[str]] = {}


@dataclass(kw_only=True, slots=True, frozen=True)
class FilePlan:
    """One file and its tensors."""

    name: str
    """The name of the file."""
    part: str
    """The part of the state."""
    tensors: tuple[str, ...]
    """The names of its tensors."""


def share(
    parts: Mapping[str, Mapping[str, int]], writers: int, *, of_first: Mapping[str, Set[str]] = _NONE
) -> list[list[FilePlan]]:
    """Return the files of each writer, at most one per part. Every tensor is in exactly one file.

    `parts` gives the bytes of each tensor. The first writer writes the tensors in `of_first`: its values count.
    """
    assert writers >= 1
    dealt: dict[str, list[list[str]]] = {part: [[] for _ in range(writers)] for part in parts}
    large: list[tuple[int, str, str]] = []
    first = 0
    for part, sizes in parts.items():
        total = sum(sizes.values())
        if total < WHOLE_BELOW or writers == 1:
            dealt[part][0] = list(sizes)
            first += total
        else:
            firsts = [name for name in sizes if name in of_first.get(part, ())]
            dealt[part][0] += firsts
            first += sum(sizes[name] for name in firsts)
            large += [(-size, part, name) for name, size in sizes.items() if name not in of_first.get(part, ())]
    loads = [(first if writer == 0 else 0, writer) for writer in range(writers)]
    heapq.heapify(loads)
    for negative, part, name in sorted(large):
        load, writer = loads[0]
        dealt[part][writer].append(name)
        heapq.heapreplace(loads, (load - negative, writer))
    return [[share for part in dealt for share in _share_of(part, dealt[part], writer)] for writer in range(writers)]


def _share_of(part: str, dealt: list[list[str]], writer: int) -> list[FilePlan]:
    """Return the file of one writer for a part; empty if the writer has no tensor of it."""
    with_some = [each for each, names in enumerate(dealt) if names]
    if writer not in with_some:
        return []
    name = file_names(part, len(with_some))[with_some.index(writer)]
    return [FilePlan(name=name, part=part, tensors=tuple(dealt[writer]))]
