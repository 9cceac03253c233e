"""The owner lock of a directory: one run at a time saves there, and the kernel frees the lock when the process dies.

Notes on the lock:
  1. It is a POSIX record lock on the file `OWNER_NAME` in the directory; the file's content names the owner.
  2. It belongs to the process. A fork does not inherit it, so a DataLoader worker does not keep it. NFS and Lustre
     share it among hosts, if they support locks.
  3. Closing any descriptor of the file frees it. So each process opens the file once (`_locks`), counts the users, and
     `check` locks again before each commit.
  4. The owner deletes the file before it unlocks. A second process that opened the deleted file sees another inode at
     the path, and tries again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from smddp.checkpoint.stores import owner_record as owners
from smddp.checkpoint.stores.filesystem import FileSystem
from smddp.checkpoint.stores.owner_record import LARGEST_OWNER, OWNER_NAME, LocationTakenError, Owner
from smddp.display_text import shown_path

logger = logging.getLogger(__name__)

_PAUSE = 0.1  # seconds between two tries; `PATIENCE_SECONDS` bounds all of them

_Key = tuple[int, int]  # a file's device and inode


@dataclass(kw_only=True, slots=True)
class _Lock:
    """A lock of this process. Only one descriptor exists: closing a second would free the lock."""

    path: Path
    descriptor: int
    holds: int


_locks: dict[_Key, _Lock] = {}
_guard = threading.RLock()
"""Guards `_locks`, and the opening of owner files. Taken alone, for a few system calls that never wait for the lock.
Reentrant: garbage collection may run `_release` at any moment."""


class DirectoryHold:
    """The ownership of a directory, until `release` or garbage collection."""

    def __init__(self, files: FileSystem, root: Path, owner: Owner) -> None:
        """Lock the directory. Raise LocationTakenError if another process still owns it after `PATIENCE_SECONDS`."""
        self._files = files
        self._path = root / OWNER_NAME
        self._owner = owner
        self._found: Owner | None = None
        self._take(patience=owners.PATIENCE_SECONDS)

    def check(self) -> None:
        """Verify the lock, and lock again if the file was removed. Raise LocationTakenError if another run owns it."""
        if _key(self._path) != self._key:
            self.release()
            self._take(patience=0)
        with _guard:
            # Code in this process that opened and closed the file, such as a copy of the directory, freed the lock.
            # Locking again restores it, and changes nothing otherwise. In a fork `_locks` is empty.
            lock = _locks.get(self._key)
            if lock is not None and not self._files.try_lock(lock.descriptor):
                raise LocationTakenError(str(self._path.parent), None)

    def release(self) -> None:
        """Unlock the directory, if this is its last user in the process."""
        self._finalizer()

    def _take(self, *, patience: float) -> None:
        deadline = time.monotonic() + patience
        told = False
        while (key := self._try()) is None:
            if time.monotonic() >= deadline:
                raise LocationTakenError(str(self._path.parent), self._found)
            if not told:
                told = True
                where = shown_path(self._path.parent)
                logger.info(
                    "another run saves its checkpoints in %s; waiting up to %.0f s for it to end", where, patience
                )
            time.sleep(_PAUSE)
        self._key = key
        self._finalizer = weakref.finalize(self, _release, key, os.getpid())
        self._finalizer.atexit = False  # the kernel unlocks at exit

    def _try(self) -> _Key | None:
        """Try to lock; None if another process owns the lock, whose record is kept in `_found`."""
        with _guard:
            key = _key(self._path)
            if key is not None and (known := _locks.get(key)) is not None:
                known.holds += 1
                if _locks.get(key) is known:  # else garbage collection ran `_release` before the count was raised
                    return key
            descriptor = self._files.open_lock(self._path)
            try:
                is_ours = self._files.try_lock(descriptor)
                key = _key_of(os.fstat(descriptor))
                if is_ours and key == _key(self._path):  # else the previous owner deleted the file meanwhile
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
    """Write the owner's record. A full disk leaves it empty; only the lock counts."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner.to_json(), 0)


def _release(key: _Key, process: int) -> None:
    """Drop one user of a lock, and unlock after the last one; do nothing in a fork."""
    if process != os.getpid():
        return
    with _guard:
        lock = _locks[key]
        lock.holds -= 1
        if lock.holds:
            return
        del _locks[key]
        with contextlib.suppress(OSError):  # a file left over is harmless
            if _key(lock.path) == key:
                lock.path.unlink()
        os.close(lock.descriptor)


def _forget() -> None:
    """Reset in a fork: the locks are the parent's, and another thread may have owned the guard."""
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
