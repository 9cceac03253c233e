"""Who writes which tensor: replicated state, which each rank could write whole, divided among several.

A pure function of names and sizes, so that every rank comes to the same answer without asking. Whole tensors are dealt
out, the largest first, each to the writer that has the least so far (Graham's longest-processing-time rule): no writer
gets more than a fair share and one tensor.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Set
from dataclasses import dataclass

from smddp.checkpoint.format.names import file_names

WHOLE_BELOW = 2**20
"""Bytes. A smaller part of the state goes to the first writer whole: another file would cost more than it saves."""

_NONE: Mapping[str, Set[str]] = {}


@dataclass(kw_only=True, slots=True, frozen=True)
class FilePlan:
    """One file, and what is in it."""

    name: str
    """The file."""
    part: str
    """The part of the state."""
    tensors: tuple[str, ...]
    """The names of its tensors."""


def share(
    parts: Mapping[str, Mapping[str, int]], writers: int, *, of_first: Mapping[str, Set[str]] = _NONE
) -> list[list[FilePlan]]:
    """Divide the state among writers.

    Args:
        parts: For each part of the state the bytes of each tensor, by name.
        writers: How many there are, at least 1.
        of_first: By part the names of tensors that are the first writer's to write: those that it has the true ones of.

    Returns:
        For each writer the files that it writes, at most one a part. Every tensor is in exactly one file; a part
        without tensors has none.
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
    """Return the file that a writer writes of a part; none if it got no tensor of it."""
    with_some = [each for each, names in enumerate(dealt) if names]
    if writer not in with_some:
        return []
    name = file_names(part, len(with_some))[with_some.index(writer)]
    return [FilePlan(name=name, part=part, tensors=tuple(dealt[writer]))]
