"""The program that mpirun starts for each rank: it runs the script with an environment that fits the rank.

1. On several hosts: over ssh a rank gets almost no environment, and by ``mpirun -x`` the first host's, with the wrong
   host name. So each rank takes the environment of the nearest process above it that has the platform's variables.
   MPI's own variables for the rank stay.
2. mpirun copies what a rank writes, write by write, and unbuffered Python writes a line and its newline separately: two
   ranks that print at once would share a line. mpirun gives each rank a terminal as standard output, to which Python
   writes whole lines at once unless it is unbuffered. So PYTHONUNBUFFERED is removed if there is a terminal. If more
   than 4 KiB wait for mpirun, another rank's line may still cut one.

mpirun starts this file by its path, so it imports nothing outside the standard library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_OF_THE_JOB = "SM_CURRENT_HOST"


def rank_environment() -> dict[str, str]:
    """Return the environment of this host's job plus MPI's variables for this rank; SystemExit outside a job."""
    parent = os.getppid()
    inherited = _environment(parent)
    given = {name: value for name, value in os.environ.items() if inherited.get(name) != value}
    while _OF_THE_JOB not in inherited:
        parent = _parent(parent)
        if parent == 0:
            raise SystemExit(
                f"no process above this rank has {_OF_THE_JOB}: it was not started in a training container"
            )
        inherited = _environment(parent)
    return {**inherited, **given}


def _environment(process: int) -> Mapping[str, str]:
    try:
        entries = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except PermissionError:
        return {}
    return {name: value for name, equals, value in (os.fsdecode(entry).partition("=") for entry in entries) if equals}


def _parent(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))


if __name__ == "__main__":
    is_on_several_hosts = sys.argv[1] == "--several-hosts"
    command = sys.argv[2:] if is_on_several_hosts else sys.argv[1:]
    environ = rank_environment() if is_on_several_hosts else dict(os.environ)
    if os.isatty(1):
        environ.pop("PYTHONUNBUFFERED", None)
    os.execvpe(command[0], command, environ)  # noqa: S606, this becomes the rank
