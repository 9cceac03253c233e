"""The process beside a platform that removes its directory once none of the platform's processes is left.

It is a separate program, ``python -I -S directory_reaper.py LIFELINE``, and imports nothing of this project. The
lifeline is a locked file. Each process that writes in the platform's directory inherits the descriptor that owns the
lock: the server, the supervisors of programs, the reapers of containers. So the lock is free once all of them have
ended, in order or by SIGKILL. The file lists its own path and those to remove then, each followed by a NUL.
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
    """Wait until no process locks the lifeline, and remove the paths that it lists."""
    with contextlib.suppress(OSError):  # nobody is left to hear of it
        remove_listed(Path(lifeline), wait=True)


def remove_listed(lifeline: Path, *, wait: bool) -> None:
    """Remove the paths that a lifeline lists, once no process locks it, and last the lifeline itself.

    The lifeline stays if this process is killed meanwhile or a path can't be removed: then another process can try
    again. Without ``wait``, a lifeline that another user owns or could have written is left alone, and BlockingIOError
    is raised if it is locked. Raise OSError if it can't be read.
    """
    descriptor = os.open(lifeline, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)  # NFS locks only what may be written
    with os.fdopen(descriptor, "rb") as file:
        if not wait and not _is_private(os.fstat(descriptor)):
            return
        # No time limit with ``wait``: the lock is free when the last process with the lifeline has ended.
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        listed = [Path(os.fsdecode(name)) for name in file.read().split(b"\0")[:-1]]  # the last one may be cut off
    # Its own path comes first. Elsewhere, as in a container that shares this directory, paths have other meanings.
    if listed[:1] != [lifeline]:
        return
    removed = [_is_removed(path) for path in listed[1:]]
    if all(removed):
        lifeline.unlink()


def _is_private(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and found.st_mode == stat.S_IFREG | 0o600 and found.st_nlink == 1


def _is_removed(path: Path) -> bool:
    try:
        remove_tree(path)
    except OSError:
        return False
    return True


def remove_tree(root: Path) -> None:
    """Remove a file or a directory tree of any depth, including directories whose mode denies their owner access.

    Follow no link, and ignore what others remove meanwhile. Raise OSError if something is left; all else is removed.
    """
    while not _remove(root):  # each pass removes something more
        pass


def _remove(root: Path) -> bool:
    """Remove the tree; return False if another process removed the current directory, and with it the way up."""
    problem: OSError | None = None
    try:
        here = os.open(root.parent, os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        return True
    # One descriptor at a time, and names in place of paths: a tree of thousands of levels would need too many
    # descriptors, or too long paths. `left` lists the names still to remove in each directory, down to `here`.
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
                problem = problem or error  # the first error is why the directory is not empty
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
    """Remove one entry; return the error, or None if the entry is gone."""
    try:
        remove(name, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


def _go_down(here: int, name: str) -> tuple[int, list[str]]:
    """Enter a directory, and open it to this user first if it is theirs; return its descriptor and its names."""
    there = os.open(name, _PLACE, dir_fd=here)
    try:
        found = os.fstat(there)
        if found.st_uid == os.geteuid() and found.st_mode & 0o700 != 0o700:
            Path(f"/proc/self/fd/{there}").chmod(0o700)
        inside = [entry.name for entry in Path(f"/proc/self/fd/{there}").iterdir()]
    except OSError as error:
        os.close(there)
        raise OSError(error.errno, error.strerror, name) from error  # the path of a descriptor tells nothing
    os.close(here)
    return there, inside


def _go_up(here: int, parent: tuple[int, int]) -> int:
    """Return to the parent directory; raise OSError if the tree was moved, so that ``..`` is another directory."""
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
