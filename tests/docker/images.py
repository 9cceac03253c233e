"""The training images that whole jobs run in, from the sources as they are now: ``python -m tests.docker.images``."""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from estimators.docker.build import Target, TrainingImage, build
from estimators.docker.docker_program import docker

MADE_BASE = "smddp-base:bookworm"
BASE = os.environ.get("SMDDP_TEST_BASE", MADE_BASE)
"""A base with torch saves minutes."""

_MAKE_BASE = Path(__file__).parents[2] / "docker" / "make-base"


@dataclass(frozen=True)
class Images:
    """Tags of images of this machine's engine."""

    smddp: str = "smddp-tests:smddp"
    toolkit: str = "smddp-tests:toolkit"


@functools.cache
def build_images() -> Images:
    """Build both, one process after another. The first time takes minutes, later ones what has changed since."""
    images = Images()
    base = find_base()
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    with _alone("images") as noted:
        if not run or noted.read() != run:  # another process of this test run has not done it
            _build("smddp", images.smddp, base)
            _build("toolkit", images.toolkit, base)
            noted.seek(0)
            noted.truncate()
            noted.write(run)
    return images


def find_base() -> str:
    """The image that the tests' images start from; ours is made if it is not there."""
    if BASE == MADE_BASE and not docker("images", "--quiet", MADE_BASE):
        with _alone("base"):
            if not docker("images", "--quiet", MADE_BASE):
                subprocess.run([str(_MAKE_BASE), MADE_BASE], check=True)
    return BASE


@contextmanager
def _alone(what: str) -> Iterator[TextIO]:
    """Be the only process at something; the file holds what the one before wrote into it."""
    with Path(tempfile.gettempdir(), f"smddp-tests-{what}.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        yield lock


def _build(target: Target, tag: str, base: str) -> None:
    before = docker("images", "--quiet", "--no-trunc", tag)
    build(TrainingImage(tag=tag, target=target, base=base, network="host"))
    if before and before != docker("images", "--quiet", "--no-trunc", tag):
        # It has no name any more; docker refuses to remove it while a container of another run still uses it.
        subprocess.run(["docker", "rmi", before], capture_output=True, check=False)


if __name__ == "__main__":
    began = time.monotonic()
    made = build_images()
    print(f"{made.smddp} and {made.toolkit} in {time.monotonic() - began:.0f} s")
