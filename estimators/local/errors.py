"""What can go wrong with the local platform itself, as opposed to a job on it."""

from __future__ import annotations


class LocalPlatformError(RuntimeError):
    """The local platform could not be started, or is no longer there."""


class StorageEndedError(LocalPlatformError):
    """What keeps the objects has ended, and can't be started again."""


INSTALL = "Install what it needs with: pip install 'smddp[local]'"
