"""How a user wants jobs to run in containers: a value that travels from their program to the server's process."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_MEMORY = re.compile(r"[1-9][0-9]*[bkmg]?")


@dataclass(kw_only=True, slots=True, frozen=True)
class Docker:
    """Runs each host of a training job as a container: ``LocalSageMaker(docker=Docker(images={"*": "my-image"}))``.

    Raises:
        ValueError: A limit is not one.
    """

    images: Mapping[str, str] = field(default_factory=dict)
    """Patterns of TrainingImage, as in file names (``*``, ``?``, ``[…]``), to images of this machine; the first that
    matches counts. An image that is here under its own name needs none."""
    cpus: float | None = None
    """How many cores each host may use, such as 1.5; None: all."""
    memory: str | None = None
    """How much memory each host may use, such as ``512m`` or ``8g``; None: all."""

    def __post_init__(self) -> None:
        if self.cpus is not None and not self.cpus > 0:
            raise ValueError(f"cpus={self.cpus!r}: give a number above 0, or None for all cores")
        if self.memory is not None and not _MEMORY.fullmatch(self.memory):
            raise ValueError(f"memory={self.memory!r}: give a whole number with b, k, m or g, such as '512m' or '8g'")

    def pattern_for(self, image: str) -> str | None:
        """The first pattern that matches a TrainingImage."""
        return next((pattern for pattern in self.images if fnmatch.fnmatchcase(image, pattern)), None)
