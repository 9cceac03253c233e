"""The training images that whole jobs run in, from the sources as they are now: ``python -m tests.docker.images``."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from estimators.docker.build import Target, TrainingImage, build
from estimators.docker.cli import DockerError, docker

MADE_BASE = "smddp-base:bookworm"
BASE = os.environ.get("SMDDP_TEST_BASE", MADE_BASE)
"""A base with torch saves minutes."""

_MAKE_BASE = Path(__file__).parents[2] / "docker" / "make-base"


@dataclass(frozen=True)
class Images:
    """Tags of images of this machine's engine."""

    smddp: str = "smddp-tests:smddp"
    toolkit: str = "smddp-tests:toolkit"


def build_images() -> Images:
    """Build both, one process after another. The first time takes minutes, later ones what has changed since."""
    images = Images()
    with Path(tempfile.gettempdir(), "smddp-test-images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if BASE == MADE_BASE and not _is_here(BASE):
            subprocess.run([str(_MAKE_BASE), BASE], check=True)
        _build("smddp", images.smddp)
        _build("toolkit", images.toolkit)
    return images


def _build(target: Target, tag: str) -> None:
    before = docker("images", "--quiet", "--no-trunc", tag)
    build(TrainingImage(tag=tag, target=target, base=BASE, network="host"))
    if before and before != docker("images", "--quiet", "--no-trunc", tag):
        # It has no name any more; docker refuses to remove it while a container of another run still uses it.
        subprocess.run(["docker", "rmi", before], capture_output=True, check=False)


def _is_here(image: str) -> bool:
    try:
        docker("image", "inspect", image)
    except DockerError:
        return False
    return True


if __name__ == "__main__":
    began = time.monotonic()
    made = build_images()
    print(f"{made.smddp} and {made.toolkit} in {time.monotonic() - began:.0f} s")
