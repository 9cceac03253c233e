"""The options of a training image. ``build.py`` builds it; the command line loads that module only for a build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Target = Literal["smddp", "toolkit"]


@dataclass(kw_only=True, slots=True, frozen=True)
class TrainingImage:
    """Options of one build."""

    tag: str
    """Name of the image on this machine, such as ``smddp-training``."""
    target: Target = "smddp"
    """Source of the image's `train` program: ``smddp`` itself, or ``toolkit`` for AWS's training toolkit."""
    base: str = "python:3.11-slim"
    """Base image. CUDA, torch, MPI and the toolkit stay as they are in it."""
    torch: str | None = None
    """Requirements and options for pip's first install, such as ``torch==2.8.0 torchvision``. None keeps the base's
    torch, or installs the tested version."""
    network: str | None = None
    """Network of the build's steps, such as ``host``. None leaves the choice to the engine."""
