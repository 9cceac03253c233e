"""Which directories of this machine may be a job's checkpoints: those that are the user's, for the hosts write as root.

What the hosts made becomes the user's after the job, and smddp deletes old checkpoints; neither is for any place that
others rely on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from estimators.problem import Problem, error

_SYSTEMS_OWN = tuple(map(Path, ("/bin", "/boot", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr")))
"""These, and all below them."""
_SHARED = frozenset(
    map(Path, ("/dev", "/media", "/mnt", "/opt", "/run", "/srv", "/tmp", "/var", "/var/tmp"))  # noqa: S108 - refused
)
"""These, but not what is in them."""
_ROOT = 0


def check(uri: str, directory: Path) -> Iterator[Problem]:
    """Say what is wrong with a directory for checkpoints.

    Args:
        uri: As it was given.
        directory: The absolute path that it means.
    """
    if found := _fault(uri, directory):
        remedy = "Give file:///directory, one of your own for this job's checkpoints; it is made if missing."
        yield error("checkpoint_s3_uri", found, remedy)


def _fault(uri: str, directory: Path) -> str | None:
    if not uri.startswith("file:///"):
        return f"{uri!r} holds no absolute path"
    if directory.exists() and not directory.is_dir():
        return f"{directory} is not a directory"
    if directory in _SHARED or any(directory.is_relative_to(place) for place in _SYSTEMS_OWN):
        return f"{directory} belongs to the system"
    home = Path.home().resolve()
    if home.is_relative_to(directory):
        return f"{directory} is your home directory" if directory == home else f"{directory} holds all home directories"
    if directory.exists() and os.getuid() not in (_ROOT, directory.stat().st_uid):
        return f"{directory} belongs to another user"
    return None
