"""A directory that one run has: by a lock of the operating system, which no death of a process leaves behind.

The lock is on a file in the directory, `OWNER_NAME`, which says who has it. It is one of those that belong to a
process (POSIX): a fork has it not, so that a data loader's worker does not keep it; several objects in one process do
not shut each other out; and NFS, Lustre and the like know it among hosts, where they know locks at all.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from smddp.checkpoint.stores import owner as owners
from smddp.checkpoint.stores.filesystem import FileSystem
from smddp.checkpoint.stores.owner import LARGEST_OWNER, OWNER_NAME, Owner, PlaceTakenError

_PAUSE = 0.1  # seconds between two tries

_Key = tuple[int, int]  # a file's device and inode


@dataclass(kw_only=True, slots=True)
class _Lock:
    """A lock that this process has. Closing any descriptor of the file would give it up: so there is one of it."""

    path: Path
    descriptor: int
    holds: int


_locks: dict[_Key, _Lock] = {}
_guard = threading.RLock()
"""Held while `_locks` is read or changed, and while a file is opened that may be in it. Reentrant: the collection of
garbage may give up a hold at any moment."""


class DirectoryHold:
    """This process has a directory, until this is released or nothing refers to it any more."""

    def __init__(self, files: FileSystem, root: Path, owner: Owner) -> None:
        """Take it, once another run that is still there has had `PATIENCE_SECONDS` to end.

        Args:
            files: How to get at it.
            root: The directory.
            owner: Who wants it.

        Raises:
            PlaceTakenError: Another process has it.
            OSError: It cannot be taken.
        """
        self._files = files
        self._path = root / OWNER_NAME
        self._owner = owner
        self._found: Owner | None = None
        self._take(patience=owners.PATIENCE_SECONDS)

    def check(self) -> None:
        """See that nobody else has it; take it again if the file was removed.

        Raises:
            PlaceTakenError: Another process has it.
            OSError: It cannot be taken.
        """
        if _key(self._path) != self._key:
            self.release()
            self._take(patience=0)
        with _guard:
            # Whoever closes another descriptor of the file in this process, a copy of the directory for instance, gives
            # the lock up: what is still ours is taken again, which changes nothing where it was kept. A fork has none:
            # its parent has it.
            lock = _locks.get(self._key)
            if lock is not None and not self._files.try_lock(lock.descriptor):
                raise PlaceTakenError(str(self._path.parent), None)

    def release(self) -> None:
        """Let others have it."""
        self._finalizer()

    def _take(self, *, patience: float) -> None:
        deadline = time.monotonic() + patience
        while (key := self._try()) is None:
            if time.monotonic() >= deadline:
                raise PlaceTakenError(str(self._path.parent), self._found)
            time.sleep(_PAUSE)
        self._key = key
        self._finalizer = weakref.finalize(self, _release, key, os.getpid())
        self._finalizer.atexit = False  # the process's end does it

    def _try(self) -> _Key | None:
        """Take the lock; None if another process has it, whose record is kept."""
        with _guard:
            key = _key(self._path)
            if key is not None and (known := _locks.get(key)) is not None:
                known.holds += 1
                if _locks.get(key) is known:
                    return key
            descriptor = self._files.open_lock(self._path)
            try:
                is_ours = self._files.try_lock(descriptor)
                key = _key_of(os.fstat(descriptor))
                if is_ours and key == _key(self._path):  # else whoever had it removed it while it was opened
                    _locks[key] = _Lock(path=self._path, descriptor=descriptor, holds=1)
                    _tell(descriptor, self._owner)
                    descriptor = -1
                    return key
                self._found = None if is_ours else Owner.from_json(os.pread(descriptor, LARGEST_OWNER, 0))
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        return None


def _tell(descriptor: int, owner: Owner) -> None:
    """Say who has it. On a full disk nobody does; the lock counts."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner.to_json(), 0)


def _release(key: _Key, process: int) -> None:
    """Give up one hold of a lock, and with the last one the lock; a fork has none."""
    if process != os.getpid():
        return
    with _guard:
        lock = _locks[key]
        lock.holds -= 1
        if lock.holds:
            return
        del _locks[key]
        with contextlib.suppress(OSError):  # it says nothing any more, and may stay
            if _key(lock.path) == key:
                lock.path.unlink()
        os.close(lock.descriptor)


def _forget() -> None:
    """Begin anew in a fork: the locks are its parent's, and another thread may have had the guard."""
    global _guard
    _guard = threading.RLock()
    _locks.clear()


os.register_at_fork(after_in_child=_forget)


def _key(path: Path) -> _Key | None:
    try:
        return _key_of(path.stat(follow_symlinks=False))
    except OSError:
        return None


def _key_of(status: os.stat_result) -> _Key:
    return status.st_dev, status.st_ino
