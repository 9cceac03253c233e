"""The process beside a cluster of containers that removes them once no process can start more.

It is a separate program, ``python -I -S container_reaper.py DOCKER CLUSTER SECONDS [OWNER IMAGE MOUNT…]``, and imports
nothing of this project. Standard input is a pipe whose other end is open in the process that owns the cluster, and in
each docker command that makes something for it. Its end means that all of those are gone, in order or by SIGKILL. A
byte before the end means that Docker may still be making something. Then, in this order:

1. The containers with the cluster's label get SIGTERM, and SECONDS to end, if any still runs.
2. They are removed, and a line on standard output says so.
3. Files that they wrote to the MOUNTs as other users become OWNER's. Only Docker is root, so a container of IMAGE does
   it. Below `ROOTS` that is everything. Below `SHARED`, where the user has other files, it is what became root's since
   this program began. A line says that it is done, or why it could not be done below `ROOTS`.
4. The network is removed.

The program may inherit the lifeline of the directory that the containers write in, so that the directory is removed
only after all this: see ``directory_reaper.py``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

LABEL = "smddp.cluster"
ROOTS, SHARED = "/roots", "/shared"
REMOVED, HANDED_OVER = "removed", "handed over"
_LONGEST_SECONDS = 600.0
"""Time limit in seconds for an absence of Docker."""
_LATE_SECONDS = 10.0
"""Seconds for which Docker may go on with the request of a program that has ended."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 20.0
_COMMAND_SECONDS = 60.0
_HAND_OVER_SECONDS = 3600.0
"""Enough for a tree of very many files."""
_SHARED_SECONDS = 600.0
"""For all shared mounts together: less than the patience of the process that waits for the hand-over."""


def main(docker: str, cluster: str, seconds: str, owner: str = "", image: str = "", *mounts: str) -> None:
    """Wait for the end of standard input, then remove the cluster."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is inherited as ignored, each command seems to succeed
    began = time.time()
    unsure = bool(sys.stdin.buffer.read())
    label = f"label={LABEL}={cluster}"
    containers = [docker, "ps", "--all", "--quiet", "--filter", label], [docker, "rm", "--force", "--volumes"]
    networks = [docker, "network", "ls", "--quiet", "--filter", label], [docker, "network", "rm"]
    if int(seconds) and (running := _run([docker, "ps", "--quiet", "--filter", label], _COMMAND_SECONDS)[0]):
        _run([docker, "stop", "--time", seconds, *running], int(seconds) + _COMMAND_SECONDS)
    if not _remove(*containers):
        _say(f"Docker has not removed the containers of {cluster} within {_LONGEST_SECONDS:g} seconds")
        return
    heard = _say(REMOVED)
    if owner:
        alone = ("--rm", "--network", "none", "--user", "0", "--log-driver", "none", "--label", f"{LABEL}={cluster}")

        def run(seen: list[str], seconds: float, program: str, *words: str) -> str:
            """Run a program in a container; return the error, or an empty text."""
            shown = (f"--mount={each}" for each in seen)
            return _run([docker, "run", *alone, *shown, "--entrypoint", program, image, *words], seconds)[1]

        shared = [each for each in mounts if each.rpartition(",")[2].startswith(f'"target={SHARED}/')]
        roots = [each for each in mounts if each not in shared]
        problem = run(roots, _HAND_OVER_SECONDS, "chown", "-R", "-h", owner, ROOTS)
        came = ("-user", "0", "-newerct", f"@{began}", "-exec", "chown", "-h", owner, "{}", "+")
        for each in shared:  # one by one: a fault of one directory does not affect the others
            # A failure here fails no job: users may change, move or hide their own files at any time, and the job needs
            # none.
            if run([each], _SHARED_SECONDS / len(shared), "find", SHARED, "-ignore_readdir_race", *came):
                sys.stderr.write(f"some of what the hosts wrote may still be root's: {each}\n")
        heard = _say(problem or HANDED_OVER)
    late = time.monotonic() + _LATE_SECONDS
    while _remove(*containers) and _remove(*networks) and (unsure or not heard) and time.monotonic() < late:
        time.sleep(_FIRST_PAUSE_SECONDS)


def _remove(listing: list[str], removing: list[str]) -> bool:
    """Remove everything that is listed until nothing is left; return whether it succeeded.

    While Docker can't, try again after each of the `_pauses`.
    """
    for pause in _pauses():
        left, problem = _run(listing, _COMMAND_SECONDS)
        if not left and not problem:
            return True
        if left:
            _, problem = _run([*removing, *left], _COMMAND_SECONDS)
        time.sleep(pause if problem else 0)
    return False


def _pauses() -> Iterator[float]:
    """Yield growing pauses, for `_LONGEST_SECONDS` in all."""
    deadline, pause = time.monotonic() + _LONGEST_SECONDS, _FIRST_PAUSE_SECONDS
    while time.monotonic() < deadline:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _run(command: list[str], seconds: float) -> tuple[list[str], str]:
    """Return the words that a command wrote, and its error, which goes to the platform's log, too."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    else:
        if done.returncode == 0:
            return done.stdout.split(), ""
        problem = " ".join(done.stderr.split()) or f"{command[1]} ended with {done.returncode}"
    sys.stderr.write(f"{problem}\n")
    return [], problem


def _say(line: str) -> bool:
    """Print a line; return whether a reader is left."""
    try:
        os.write(sys.stdout.fileno(), f"{line}\n".encode())
    except BrokenPipeError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
