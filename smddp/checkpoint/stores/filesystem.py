"""The file system operations that `DirectoryStore` uses.

They are methods of a class, so that a test can count, record or fail them, or die in one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from smddp.checkpoint.stores.store import StoreError

LONGEST_LOCK = 30.0
"""Seconds to wait for a lock. Its owner needs some milliseconds."""

_MODE = 0o666  # less the umask, as open() does it
# Error codes of a file system that does not support an operation. EBADF: NFS, when a directory is locked.
_NOT_SUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EBADF}


class FileSystem:
    """The real file system. Every method raises OSError."""

    def make_directory(self, path: Path) -> None:
        """Create a directory, which must not exist."""
        path.mkdir()

    def create(self, path: Path) -> int:
        """Create or truncate a file, and return its descriptor. Symbolic links are not followed."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)

    def write(self, descriptor: int, content: memoryview) -> None:
        """Write all bytes of a flat view, without the GIL."""
        while content:
            content = content[os.write(descriptor, content) :]

    def begin_sync(self, descriptor: int, offset: int, size: int) -> None:
        """Ask the kernel to start writeback of a range, so that `sync` waits less. Only a hint."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)

    def sync(self, descriptor: int) -> None:
        """Flush the bytes of a file (fsync)."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a file."""
        os.close(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Flush the names in a directory (fsync), if the file system supports it."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, which must not exist (hard link)."""
        os.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, replacing the target."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file, or a symbolic link but not its target."""
        path.unlink()

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        """Lock a directory exclusively (flock); the kernel unlocks it if the process is killed.

        Raise BlockingIOError after `LONGEST_LOCK`. Without support in the file system, lock nothing.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                self._lock(descriptor, path)
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
            yield
        finally:
            with contextlib.suppress(OSError):  # nothing was locked
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # explicit: a process forked meanwhile shares the descriptor
            os.close(descriptor)

    def _lock(self, descriptor: int, path: Path) -> None:
        deadline = time.monotonic() + LONGEST_LOCK
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    held = f"another process has had its lock for {LONGEST_LOCK:.0f} s"
                    raise BlockingIOError(errno.EWOULDBLOCK, held, str(path)) from error
            time.sleep(0.01)

    def open_lock(self, path: Path) -> int:
        """Open a file for `try_lock`, creating it if absent, and return its descriptor."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)

    def try_lock(self, descriptor: int) -> bool:
        """Lock a file for this process, until it closes any descriptor of the file; False if another process owns it.

        Without support in the file system, return True.
        """
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            if error.errno not in _NOT_SUPPORTED:
                raise
        return True

    def is_directory(self, path: Path) -> bool:
        """Return whether the path is a directory. Symbolic links are not followed."""
        try:
            return stat.S_ISDIR(path.lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def is_link(self, path: Path) -> bool:
        """Return whether the path is a symbolic link, dangling or not."""
        return path.is_symlink()

    def status(self, path: Path) -> os.stat_result | None:
        """Return the status of a file, following symbolic links; None if absent."""
        try:
            return path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, path: Path) -> dict[str, bool]:
        """Return the names in a directory, each with whether it is a directory. Symbolic links are not followed."""
        with os.scandir(path) as entries:
            return {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}

    def read_into(self, path: Path, offset: int, memory: memoryview) -> int:
        """Fill a flat view with bytes of a file, without the GIL; return the count, smaller at the file's end."""
        start = 0
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while start < len(memory):
                count = os.preadv(descriptor, [memory[start:]], offset + start)
                if count == 0:
                    break
                start += count
        finally:
            os.close(descriptor)
        return start


_TRANSIENT = {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT}
MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
"""Error codes of an absent file, or of a path that is not a file. Other codes say nothing about the file."""
_FULL = "free some space there, or keep fewer checkpoints"
_BARRED = "let this user write there, or save somewhere else"
_UNREADABLE = "let this user read it, and enter the directories above it"
_FAILING = "the disk or the way to it fails: see the kernel's log (dmesg)"
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _BARRED,
    errno.EPERM: _BARRED,
    errno.EROFS: "make it writable, or save somewhere else",
    errno.ENOTDIR: "move the file away that is in the place of a directory, or save somewhere else",
    errno.EIO: _FAILING,
    errno.ENOENT: "something else removed it while it was in use",
    errno.EISDIR: "move the directory away that is in the place of a file",
    errno.EWOULDBLOCK: "find it (lsof, fuser; on other hosts, too, if they share the directory): it may hang, or be a "
    "second run that shares the directory",
}
_ADVICE_OF_READING = {
    errno.EACCES: _UNREADABLE,
    errno.EPERM: _UNREADABLE,
    errno.EIO: f"{_FAILING}; if it is lost for good, move its checkpoint away to resume from the one before",
}


@contextlib.contextmanager
def telling(action: str, path: Path) -> Iterator[None]:
    """Turn OSError into a StoreError that names the action and gives advice."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "earlier checkpoints are as they were")
        if action == "read":
            advice = _ADVICE_OF_READING.get(error.errno or 0, advice)
        raise StoreError(
            f"cannot {action} {path}: {error.strerror or error}; {advice}", transient=error.errno in _TRANSIENT
        ) from error


@contextlib.contextmanager
def telling_unless_missing(path: Path) -> Iterator[None]:
    """Turn OSError of a read into a StoreError; leave the errors of an absent file (`MISSING`) to the caller."""
    try:
        with telling("read", path):
            yield
    except StoreError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in MISSING:
            raise error.__cause__ from None
        raise
