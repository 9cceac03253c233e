"""The process that stands beside a cluster of containers, and removes them when nobody can start any more.

It is a program of its own, run as ``python -I -S remover.py DOCKER CLUSTER [OWNER IMAGE ROOT…]``, and imports nothing
of this project. Standard input is a pipe whose other end is open in the process that has the cluster, and in every
docker command by which that makes something. Its end means that all of those are gone, in order or by SIGKILL.

Then the containers with the cluster's label go; what they wrote below the ROOTs as other users becomes OWNER's, which a
container of IMAGE sees to, as only Docker is root; one line on standard output says that this is done; and last the
network goes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

LABEL = "smddp.cluster"
_ATTEMPTS = 30
_PAUSE_SECONDS = 1.0


def main(docker: str, cluster: str, owner: str = "", image: str = "", *roots: str) -> None:
    """Wait for the end, and remove."""
    sys.stdin.buffer.read()
    label = f"label={LABEL}={cluster}"
    _remove([docker, "ps", "--all", "--quiet", "--filter", label], [docker, "rm", "--force", "--volumes"])
    if owner:
        places = {f"/roots/{number}": root for number, root in enumerate(roots)}
        mounts = [f"--mount={bind(root, place)}" for place, root in places.items()]
        alone = ("--rm", "--network", "none", "--user", "0", "--log-driver", "none", "--label", f"{LABEL}={cluster}")
        _run([docker, "run", *alone, *mounts, "--entrypoint", "chown", image, "-R", "-h", owner, *places])
    with contextlib.suppress(BrokenPipeError):  # nobody waits
        os.write(sys.stdout.fileno(), b"removed\n")
    _remove([docker, "network", "ls", "--quiet", "--filter", label], [docker, "network", "rm"])


def bind(source: str, target: str) -> str:
    """What ``docker --mount`` takes to show a directory of this machine in a container: a line of CSV."""
    quoted = source.replace('"', '""')
    return f'type=bind,"source={quoted}",target={target}'


def _remove(listing: list[str], removing: list[str]) -> None:
    """Remove what is listed; if Docker can't now, try again."""
    for _ in range(_ATTEMPTS):
        left = _run(listing)
        if left == [] or (left and _run([*removing, *left]) is not None):
            return
        time.sleep(_PAUSE_SECONDS)


def _run(command: list[str]) -> list[str] | None:
    """The words that a command wrote; None if it failed, and why is on standard error, the platform's log."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else None


if __name__ == "__main__":
    main(*sys.argv[1:])
