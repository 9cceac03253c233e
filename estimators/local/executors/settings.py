"""The user's settings for jobs: values that go from the user's program to the server's process."""

from __future__ import annotations

import fnmatch
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_LEAST_CPUS = 0.01
_LEAST_MEMORY = 6 << 20
"""Docker's own minimum of each."""
_MEMORY = re.compile(r"([0-9]+)([bkmg]?)")
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(kw_only=True, slots=True, frozen=True)
class Processes:
    """Runs each host of a job as processes of this machine, in the environment of one Python.

    ``LocalSageMaker(executor=Processes(python="/opt/env/bin/python"))``. Without an executor it is the Python that
    starts the platform.

    Raises:
        ValueError: `python` is not the absolute path of a program.
    """

    python: str | Path = field(default_factory=lambda: sys.executable)
    """Runs the hosts in place of a job's image: it has torch, smddp and pip."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "python", str(self.python))
        if not Path(self.python).is_absolute() or not os.access(self.python, os.X_OK):
            raise ValueError(f"python={self.python!r}: give the absolute path of a Python, such as {sys.executable!r}")

    @property
    def runs_here(self) -> bool:
        """Whether `python` is the platform's own Python."""
        return self.python == sys.executable


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


@dataclass(kw_only=True, slots=True, frozen=True)
class Slurm:
    """Runs each host of a training job as a task of Slurm, one host on each node.

    ``LocalSageMaker(executor=Slurm(partition="gpu", shared="/nfs/me"))``. The nodes need this Python's environment
    under the same path.

    Raises:
        ValueError: `shared` is not an absolute path of a directory, or an option is not one word starting with ``--``.
    """

    shared: str | Path
    """An existing directory under the same path on this machine and all nodes; it contains the hosts' files."""
    partition: str | None = None
    """The partition; None: Slurm's default."""
    options: Sequence[str] = ()
    """More options for salloc, such as ``--gpus-per-node=4`` or ``--time=120``."""
    address: str | None = None
    """Address of this machine for the nodes' requests to the platform's S3, which has a job's code; None: the address
    from which this machine reaches the nodes."""

    isolated: bool = True
    """Whether a program sees its directory at ``/opt/ml``, in its own namespaces. Give False for nodes that bar
    namespaces: then the program gets ``SAGEMAKER_BASE_DIR``, and its hosts are known by their addresses."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared", str(self.shared))
        object.__setattr__(self, "options", tuple(self.options))
        if not Path(self.shared).is_absolute() or not Path(self.shared).is_dir():
            raise ValueError(f"shared={self.shared!r}: give the absolute path of a directory that all nodes share")
        for option in self.options:
            if not option.startswith("--") or len(option.split()) != 1:
                raise ValueError(f"options: {option!r} is no option for salloc: write '--name=value', one text each")


def _bytes(memory: str) -> int:
    """Return an amount of memory in bytes; 0 if the text is not an amount."""
    amount = _MEMORY.fullmatch(memory)
    return int(amount[1]) * _UNITS[amount[2]] if amount else 0
