"""A training image as it is asked for. How it is made is ``build.py``, which the command line loads only for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Target = Literal["smddp", "toolkit"]


@dataclass(kw_only=True, slots=True, frozen=True)
class TrainingImage:
    """What is to be built."""

    tag: str
    """The image's name on this machine, such as ``smddp-training``."""
    target: Target = "smddp"
    """Whose `train` it runs: ``smddp``'s own, or that of AWS's ``toolkit``."""
    base: str = "python:3.11-slim"
    """The image that it starts from. What that one has already stays: CUDA, torch, MPI, the toolkit."""
    torch: str | None = None
    """What pip installs before all else: requirements and options of pip, such as ``torch==2.8.0 torchvision``. None
    keeps the base's torch, or installs the tested version of it."""
    network: str | None = None
    """The network of the build's steps, such as ``host``; None is the engine's own choice."""
