"""A directory whose files nobody but this process's user reads or replaces: what lies in it is run as code."""

from __future__ import annotations

import fcntl
import grp
import logging
import os
import pwd
import stat
from pathlib import Path

from estimators.local.errors import LocalPlatformError

logger = logging.getLogger(__name__)

PRIVATE = 0o077
"""The umask of whatever writes there."""

LOCK = ".lock"
"""The file that a platform locks in the directory of its objects, so that two never write the same."""


def require_private(path: Path) -> None:
    """See that nobody else can have written a file, or in a directory: it is ours, and was closed all along.

    Raises:
        LocalPlatformError: Somebody else can.
        FileNotFoundError: There is none.
    """
    found = path.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & PRIVATE or stat.S_ISLNK(found.st_mode):
        raise LocalPlatformError(
            f"{path} must be yours, and nobody else's to read or write, for keys are in it. Remove it, or choose "
            "another directory."
        )


def require_unshared(directory: Path) -> None:
    """See that nobody else can put something of their own in the place of what lies in a directory, or of it.

    Who may write in a directory may rename what is in it, however closed that is; but for a sticky one, such as /tmp.

    Raises:
        LocalPlatformError: Somebody can.
    """
    for place in (directory, *directory.parents):
        found = place.lstat()
        if (place == directory or stat.S_ISLNK(found.st_mode)) and found.st_uid not in (0, os.geteuid()):
            raise LocalPlatformError(
                f"{place} belongs to user {found.st_uid}, who could replace the code that jobs run, and you are user "
                f"{os.geteuid()}. Choose another directory."
            )
        if stat.S_ISLNK(found.st_mode):
            require_unshared(place.resolve())
            continue
        shared = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid))
        if shared and not found.st_mode & stat.S_ISVTX:
            raise LocalPlatformError(
                f"{place} can be written to by other users (mode {stat.S_IMODE(found.st_mode):o}), who could replace "
                f"{directory}, and with it the code that jobs run. Choose another directory, or do: chmod go-w {place}"
            )


def _is_own_group(group: int) -> bool:
    """Return whether a group holds nobody but this user and root: many systems give each user one of the same name."""
    if group == 0:
        return True
    try:
        name, entry = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:  # no name, such as in a container
        return False
    return entry.gr_name == name and set(entry.gr_mem) <= {name}


def is_locked(directory: Path) -> bool:
    """Return whether a platform that runs holds a directory."""
    try:
        with (directory / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def make_private(directory: Path) -> None:
    """Make a directory that is closed to all others, or close one that is there.

    Raises:
        LocalPlatformError: It belongs to somebody else, who could change what is in it.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = directory.stat()
    if found.st_uid != os.geteuid():
        raise LocalPlatformError(
            f"{directory} belongs to user {found.st_uid}, who could replace the code that jobs run, and you are user "
            f"{os.geteuid()}. Choose another directory, or take it over with: sudo chown -R {os.geteuid()} {directory}"
        )
    if found.st_mode & PRIVATE:
        directory.chmod(0o700)
        logger.warning("closed %s to other users: its mode was %o", directory, stat.S_IMODE(found.st_mode))
