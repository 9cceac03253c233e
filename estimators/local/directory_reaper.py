"""The process that stands beside a platform, and removes what is left of it when nothing of it runs any more.

It is a program of its own, ``python -I -S directory_reaper.py LIFELINE``, that imports nothing of this project. The
lifeline is a locked file. Every process that writes in the platform's directory has inherited the descriptor that holds
the lock: the server, the supervisors of programs, the reapers of containers. So the lock is free once all of those are
gone, in order or by SIGKILL. The file holds the paths of what is to go then, each with a NUL behind it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW


def main(lifeline: str) -> None:
    """Wait until no process holds the lifeline, and remove what it names."""
    with contextlib.suppress(OSError):  # nobody is left to hear of it
        remove_named(Path(lifeline), wait=True)


def remove_named(lifeline: Path, *, wait: bool) -> None:
    """Remove what a lifeline names once no process holds it, and then the lifeline: who is killed here can be followed.

    Args:
        lifeline: The file. One of another user, or that another user could have written, is left alone.
        wait: Whether to wait for those who hold it.

    Raises:
        BlockingIOError: A process holds it, and ``wait`` is false.
        OSError: It can't be read.
    """
    descriptor = os.open(lifeline, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a named pipe would hold us
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode != stat.S_IFREG | 0o600 or found.st_nlink != 1:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        named = file.read().split(b"\0")[:-1]  # the last one is empty, or was cut off by SIGKILL
        for path in (*(Path(os.fsdecode(name)) for name in named), lifeline):
            with contextlib.suppress(OSError):
                remove_tree(path)


def remove_tree(root: Path) -> None:
    """Remove a file, or a directory and all in it, however deep, also what a program has closed to its owner.

    What others remove meanwhile is no error, and no link is followed.

    Raises:
        OSError: Something could not be removed; all else is gone.
    """
    while not _remove(root):  # each time something more is gone
        pass


def _remove(root: Path) -> bool:
    """Remove it; False if another process has removed the directory that was just emptied, and with it the way up."""
    problem: OSError | None = None
    try:
        here = os.open(root.parent, os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        return True
    # One descriptor at a time, and names instead of paths: a tree that is thousands of levels deep has too many of the
    # former and too long ones of the latter. What is left to remove in each directory, down to `here`:
    left = [(_identity(here), [root.name])]
    while left:
        names = left[-1][1]
        if not names:
            left.pop()
            if left:
                try:
                    here = _go_up(here, left[-1][0])
                except FileNotFoundError:
                    return False
                error = _try(os.rmdir, left[-1][1].pop(), here)
                problem = problem or error  # what came first is why the directory is not empty
            continue
        error = _try(os.unlink, names[-1], here)
        if isinstance(error, IsADirectoryError):
            try:
                here, inside = _go_down(here, names[-1])
            except FileNotFoundError:
                error = None
            except OSError as closed:
                error = closed
            else:
                left.append((_identity(here), inside))
                continue
        problem = problem or error
        names.pop()
    os.close(here)
    if problem is not None:
        raise problem
    return True


def _try(remove: Callable[..., None], name: str, parent: int) -> OSError | None:
    """Remove one entry; what went wrong, unless it is gone already."""
    try:
        remove(name, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


def _go_down(here: int, name: str) -> tuple[int, list[str]]:
    """Open a directory, to ourselves too if it is ours and closed; what is in it."""
    there = os.open(name, _PLACE, dir_fd=here)
    try:
        found = os.fstat(there)
        if found.st_uid == os.geteuid() and found.st_mode & 0o700 != 0o700:
            Path(f"/proc/self/fd/{there}").chmod(0o700)
        inside = [entry.name for entry in Path(f"/proc/self/fd/{there}").iterdir()]
    except OSError as error:
        os.close(there)
        raise OSError(error.errno, error.strerror, name) from error  # its own path, of a descriptor, tells nothing
    os.close(here)
    return there, inside


def _go_up(here: int, parent: tuple[int, int]) -> int:
    """Return to the directory that we came from; if something has moved the tree, ``..`` is another one."""
    try:
        above = os.open("..", _PLACE, dir_fd=here)
    finally:
        os.close(here)
    if _identity(above) != parent:
        os.close(above)
        raise OSError(errno.ESTALE, "a directory was moved away while it was removed")
    return above


def _identity(place: int) -> tuple[int, int]:
    found = os.fstat(place)
    return found.st_dev, found.st_ino


if __name__ == "__main__":
    main(*sys.argv[1:])
