"""The training images that whole jobs run in, built from the sources as they are now."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from estimators.docker.build import Target, TrainingImage, build
from estimators.docker.cli import DockerError, docker

ROOT = Path(__file__).parents[2]
BASE = os.environ.get("SMDDP_TEST_BASE", "smddp-base:bookworm")
"""Another base saves time: one with torch takes half a minute instead of four."""


@dataclass(frozen=True)
class Images:
    """Tags of images of this engine."""

    smddp: str = "smddp-tests:smddp"
    toolkit: str = "smddp-tests:toolkit"


@pytest.fixture(scope="session")
def images() -> Images:
    """Both images. The first build takes minutes, later ones what has changed since."""
    names = Images()
    with Path(tempfile.gettempdir(), "smddp-test-images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if "SMDDP_TEST_BASE" not in os.environ and not _is_here(BASE):
            subprocess.run([str(ROOT / "docker" / "make-base"), BASE], check=True)
        _build("smddp", names.smddp)
        _build("toolkit", names.toolkit)
    return names


def _build(target: Target, tag: str) -> None:
    before = docker("images", "--quiet", "--no-trunc", tag)
    build(TrainingImage(tag=tag, target=target, base=BASE, network="host"))
    if before and before != docker("images", "--quiet", "--no-trunc", tag):
        # An older image of the tests' own, which a container of another run may still use.
        subprocess.run(["docker", "rmi", before], capture_output=True, check=False)


def _is_here(image: str) -> bool:
    try:
        docker("image", "inspect", image)
    except DockerError:
        return False
    return True
