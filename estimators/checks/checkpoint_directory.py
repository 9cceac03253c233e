"""Check which directories of this machine may hold checkpoints: only the user's own, because the hosts write as root.

After the job the user becomes the owner of the hosts' files, and smddp deletes old checkpoints. Neither is acceptable
in a directory that others use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from estimators.errors import Problem, error

_SYSTEMS_OWN = tuple(map(Path, ("/bin", "/boot", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr")))
"""Refused, with everything below them."""
_SHARED = frozenset(
    map(Path, ("/dev", "/media", "/mnt", "/opt", "/run", "/srv", "/tmp", "/var", "/var/tmp"))  # noqa: S108 - refused
)
"""Refused themselves; directories in them are allowed."""
_ROOT = 0


def check(uri: str, directory: Path) -> Iterator[Problem]:
    """Yield the problem of a directory for checkpoints; `uri` is the parameter, `directory` its absolute path."""
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
