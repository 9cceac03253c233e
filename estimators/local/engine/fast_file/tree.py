"""The directories and files of a mount: the objects of a channel by their paths, each node with a number."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from estimators.local.engine.fast_file.protocol import ROOT, Attributes
from estimators.local.engine.objects import S3Object


@dataclass(kw_only=True, slots=True)
class Node:
    """A file, or a directory."""

    number: int
    object: S3Object | None = None
    """What a file is; None for a directory."""
    children: dict[bytes, Node] = field(default_factory=dict)
    _listed: list[tuple[bytes, Node]] = field(default_factory=list)

    def list(self, start: int) -> Iterator[tuple[int, bytes, Node]]:
        """The children from the one with the number ``start`` on, each with its number and name."""
        if not self._listed:
            self._listed = list(self.children.items())  # once: a large directory is asked for in many small pieces
        for number in range(start, len(self._listed)):
            yield number, *self._listed[number]

    @property
    def attributes(self) -> Attributes:
        """What `stat` tells of it."""
        found = self.object
        return Attributes(
            node=self.number,
            is_directory=found is None,
            size=0 if found is None else found.size,
            modified=0 if found is None else found.modified,
        )


class Tree:
    """All nodes.

    Args:
        objects: By path; none is also a directory of another.
    """

    def __init__(self, objects: Mapping[str, S3Object]) -> None:
        self.nodes: dict[int, Node] = {ROOT: Node(number=ROOT)}
        for path, found in objects.items():
            directory = self.nodes[ROOT]
            *parents, name = os.fsencode(path).split(b"/")
            for parent in parents:
                directory = directory.children.get(parent) or self._add(directory, parent)
            self._add(directory, name).object = found

    def _add(self, directory: Node, name: bytes) -> Node:
        number = ROOT + len(self.nodes)
        node = self.nodes[number] = directory.children[name] = Node(number=number)
        return node
