"""A directory that only this process's user may read or replace files in, because its files are run as code."""

from __future__ import annotations

import fcntl
import grp
import logging
import os
import pwd
import stat
from pathlib import Path

from estimators.local.errors import LocalPlatformError
from smddp.secret_text import UNBUNDLED_MARK

logger = logging.getLogger(__name__)

PRIVATE = 0o077
"""The umask of every program that writes there."""

LOCK = ".lock"
"""The file that a platform locks in its objects' directory, so that two platforms never write the same objects."""


def require_private(path: Path) -> None:
    """Raise LocalPlatformError unless a path is ours and closed to others; raise FileNotFoundError if it is absent."""
    found = path.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & PRIVATE or stat.S_ISLNK(found.st_mode):
        raise LocalPlatformError(
            f"{path} must be yours, and nobody else's to read or write, for keys are in it. Remove it, or choose "
            "another directory."
        )


def require_unshared(directory: Path) -> None:
    """Raise LocalPlatformError if another user could replace a directory, or a file in it.

    A user who may write in a directory may rename its entries, however closed they are, except in a sticky one such as
    /tmp.
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
    """Return whether only this user and root are in a group; many systems give each user a group of the same name."""
    if group == 0:
        return True
    try:
        name, entry = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:  # no name, such as in a container
        return False
    return entry.gr_name == name and set(entry.gr_mem) <= {name}


def is_locked(directory: Path) -> bool:
    """Return whether a running platform locks a directory."""
    try:
        with (directory / LOCK).open() as lock:
            # Shared, so that two checks don't take each other for a platform; a platform that starts meanwhile retries.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def make_private(directory: Path) -> None:
    """Make a directory closed to all others, or close an existing one; raise LocalPlatformError if it is not ours."""
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
    keep_out_of_bundles(directory)


def keep_out_of_bundles(directory: Path) -> None:
    """Mark a directory, so that a job whose source_dir contains it does not upload keys, records and objects."""
    mark = directory / UNBUNDLED_MARK
    mark.touch(mode=0o600)
    mark.write_text("This directory is smddp's own. It is never a part of a job's code.\n")
