"""A directory whose files nobody but this process's user reads or replaces: what lies in it is run as code."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from estimators.local.errors import LocalPlatformError

logger = logging.getLogger(__name__)

PRIVATE = 0o077
"""The umask of whatever writes there."""


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
