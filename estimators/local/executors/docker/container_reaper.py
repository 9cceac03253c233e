"""The process that stands beside a cluster of containers, and removes them when nobody can start any more.

It is a program of its own, ``python -I -S container_reaper.py DOCKER CLUSTER SECONDS [OWNER IMAGE MOUNT…]``, that
imports nothing of this project. Standard input is a pipe whose other end is open in the process that has the cluster,
and in every docker command by which that makes something. Its end means that all of those are gone, in order or by
SIGKILL. Any byte before it means that Docker may still be making something that it was asked for.

Then the containers with the cluster's label get SIGTERM and SECONDS to end, if any runs yet; they go, and a line on
standard output says so. What they wrote to the MOUNTs as other users becomes OWNER's, which a container of IMAGE sees
to, as only Docker is root: all that is below `ROOTS`, and below `SHARED`, where other things of the user's lie, what
root has come to own since this program began. A line says that, or why it could not be done below `ROOTS`. Last the
network goes. It may have the lifeline of the directory that the containers write in, which then is not removed before
all this is done: see ``directory_reaper.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

LABEL = "smddp.cluster"
ROOTS, SHARED = "/roots", "/shared"
REMOVED, HANDED_OVER = "removed", "handed over"
_LONGEST_SECONDS = 600.0
"""How long Docker may be away."""
_LATE_SECONDS = 10.0
"""How long Docker may go on with what it was asked for by a program that has ended since."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 20.0
_COMMAND_SECONDS = 60.0
_HAND_OVER_SECONDS = 3600.0
"""As long as a tree of very many files takes."""
_SHARED_SECONDS = 600.0
"""For all of them: less than whoever waits for it has patience for."""


def main(docker: str, cluster: str, seconds: str, owner: str = "", image: str = "", *mounts: str) -> None:
    """Wait for the end, and remove."""
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
            """Run a program in a container; what went wrong."""
            shown = (f"--mount={each}" for each in seen)
            return _run([docker, "run", *alone, *shown, "--entrypoint", program, image, *words], seconds)[1]

        shared = [each for each in mounts if each.rpartition(",")[2].startswith(f'"target={SHARED}/')]
        roots = [each for each in mounts if each not in shared]
        problem = run(roots, _HAND_OVER_SECONDS, "chown", "-R", "-h", owner, ROOTS)
        came = ("-user", "0", "-newerct", f"@{began}", "-exec", "chown", "-h", owner, "{}", "+")
        for each in shared:  # alone: what is wrong with one directory leaves no other root's
            # It fails no job: the user may change, move or hide files of theirs at any time, and the job needs none.
            if run([each], _SHARED_SECONDS / len(shared), "find", SHARED, "-ignore_readdir_race", *came):
                sys.stderr.write(f"some of what the hosts wrote may still be root's: {each}\n")
        heard = _say(problem or HANDED_OVER)
    late = time.monotonic() + _LATE_SECONDS
    while _remove(*containers) and _remove(*networks) and (unsure or not heard) and time.monotonic() < late:
        time.sleep(_FIRST_PAUSE_SECONDS)


def _remove(listing: list[str], removing: list[str]) -> bool:
    """Remove what is listed, until nothing is; if Docker can't now, try again. Whether it came to that."""
    for pause in _pauses():
        left, problem = _run(listing, _COMMAND_SECONDS)
        if not left and not problem:
            return True
        if left:
            _, problem = _run([*removing, *left], _COMMAND_SECONDS)
        time.sleep(pause if problem else 0)
    return False


def _pauses() -> Iterator[float]:
    """Yield growing pauses, for as long as Docker may be away."""
    deadline, pause = time.monotonic() + _LONGEST_SECONDS, _FIRST_PAUSE_SECONDS
    while time.monotonic() < deadline:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _run(command: list[str], seconds: float) -> tuple[list[str], str]:
    """Return the words that a command wrote, and what went wrong, which goes to the platform's log, too."""
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
    """Return whether somebody is there to hear it."""
    try:
        os.write(sys.stdout.fileno(), f"{line}\n".encode())
    except BrokenPipeError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
