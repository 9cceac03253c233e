"""The user's settings for jobs in containers: a value that goes from the user's program to the server's process."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_LEAST_CPUS = 0.01
_LEAST_MEMORY = 6 << 20
"""Docker's own minimum of each."""
_MEMORY = re.compile(r"([0-9]+)([bkmg]?)")
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(kw_only=True, slots=True, frozen=True)
class Docker:
    """Runs each host of a training job as a container: ``LocalSageMaker(executor=Docker(images={"*": "my-image"}))``.

    Raises:
        ValueError: `images` is not a mapping of names, or a limit is out of range.
    """

    images: Mapping[str, str] = field(default_factory=dict)
    """Maps patterns of TrainingImage, as in file names (``*``, ``?``, ``[…]``), to images of this machine; the first
    match counts. An image that is here under its own name needs no entry."""
    cpus: float | None = None
    """Cores that each host may use, such as 1.5; None: all."""
    memory: str | None = None
    """Memory that each host may use, such as ``512m`` or ``8g``; None: all."""
    gpus: bool = False
    """Whether each host sees all GPUs of this machine. The engine needs NVIDIA's container toolkit."""

    def __post_init__(self) -> None:
        if not isinstance(self.images, Mapping) or not all(
            isinstance(name, str) and name for pair in self.images.items() for name in pair
        ):
            raise ValueError(f"images={self.images!r}: give a dict of patterns to images, {{'*': 'smddp-training'}}")
        cores = os.cpu_count() or 1
        if self.cpus is not None and not (isinstance(self.cpus, (int, float)) and _LEAST_CPUS <= self.cpus <= cores):
            raise ValueError(
                f"cpus={self.cpus!r}: give a number from {_LEAST_CPUS:g} to the {cores} cores of this machine, or None "
                "for all"
            )
        if self.memory is not None and not (isinstance(self.memory, str) and _bytes(self.memory) >= _LEAST_MEMORY):
            raise ValueError(
                f"memory={self.memory!r}: give a whole number with b, k, m or g, such as '512m' or '8g', and at least "
                "'6m', or None for all"
            )

    def pattern_for(self, image: str) -> str | None:
        """Return the first pattern that matches a TrainingImage; None if none does."""
        return next((pattern for pattern in self.images if fnmatch.fnmatchcase(image, pattern)), None)


def _bytes(memory: str) -> int:
    """Return an amount of memory in bytes; 0 if the text is not an amount."""
    amount = _MEMORY.fullmatch(memory)
    return int(amount[1]) * _UNITS[amount[2]] if amount else 0
