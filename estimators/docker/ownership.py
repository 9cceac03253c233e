"""Files that containers wrote, handed back to the user: a container's root owns what it writes on this machine, too."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from estimators.docker.docker_program import docker
from estimators.docker.mount import bind

_ROOT = 0
_STAMP = "/given/stamp"


def give_back(directories: Sequence[Path], image: str, *, since: Path) -> None:
    """Make this user the owner of what root came to own in `directories`. Does nothing for root, or if all is well.

    Only a container's root may do that, so one of `image`, without a network, does. What was root's before stays so: it
    is not the containers' work.

    Args:
        directories: What containers wrote to.
        image: Any image with GNU's ``find`` and ``chown``.
        since: A file that was last changed before the containers ran.

    Raises:
        DockerError: The container failed.
    """
    user, group = os.getuid(), os.getgid()
    if user == _ROOT:
        return
    began = since.stat().st_ctime_ns
    roots_own = [
        directory
        for directory in directories
        if any(_came_to_root(path, began) for path in itertools.chain([directory], directory.rglob("*")))
    ]
    if not roots_own:
        return
    mounts = {f"/given/{number}": directory for number, directory in enumerate(roots_own)}
    docker(
        *("run", "--rm", "--network", "none", "--user", "0:0", "--entrypoint", "find"),
        f"--mount={bind(str(since.resolve()), _STAMP, read_only=True)}",
        *(f"--mount={bind(str(directory.resolve()), inside)}" for inside, directory in mounts.items()),
        *(image, *mounts, "-user", str(_ROOT), "-cnewer", _STAMP),
        *("-exec", "chown", "-h", f"{user}:{group}", "{}", "+"),
    )


def _came_to_root(path: Path, began: int) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return status.st_uid == _ROOT and status.st_ctime_ns > began
