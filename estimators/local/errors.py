"""Errors of the local platform itself, as opposed to a job on it."""

from __future__ import annotations


class LocalPlatformError(RuntimeError):
    """The local platform could not start, or is gone."""


class StorageEndedError(LocalPlatformError):
    """The storage of the objects has ended, and can't be restarted."""


INSTALL = "Install what it needs with: pip install 'smddp[local]'"
