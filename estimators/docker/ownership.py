"""Files that containers wrote, handed back to the user: a container's root owns what it writes on this machine, too."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from estimators.docker.cli import docker

_ROOT = 0


def give_back(directories: Sequence[Path], image: str) -> None:
    """Make this user the owner of everything in `directories` that root owns. Does nothing for root, or if all is well.

    Only a container's root may do that, so one of `image`, without a network, does.

    Args:
        directories: What containers wrote to.
        image: Any image with ``chown``.

    Raises:
        DockerError: The container failed.
    """
    user, group = os.getuid(), os.getgid()
    if user == _ROOT:
        return
    roots_own = [
        directory
        for directory in directories
        if _ROOT in map(_owner, itertools.chain([directory], directory.rglob("*")))
    ]
    if not roots_own:
        return
    mounts = {f"/given/{number}": directory for number, directory in enumerate(roots_own)}
    docker(
        *("run", "--rm", "--network", "none", "--user", "0:0", "--entrypoint", "chown"),
        *(f"--volume={directory.resolve()}:{inside}" for inside, directory in mounts.items()),
        *(image, "-R", "-h", f"--from={_ROOT}", f"{user}:{group}", *mounts),
    )


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None
