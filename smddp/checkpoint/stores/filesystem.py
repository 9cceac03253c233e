"""The operations of a file system that a store of checkpoints is made of, and nothing of what they are for.

It is a class so that a test can count, record and fail them, or die in one.
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

LONGEST_LOCK = 30.0
"""Seconds that a lock is waited for; who has it needs it for some milliseconds."""

_MODE = 0o666  # less the umask, as open() does it
# What file systems answer that do not know an operation at all; EBADF: NFS, for the lock of a directory.
_NOT_SUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EBADF}


class FileSystem:
    """The real one. Every method raises OSError."""

    def make_directory(self, path: Path) -> None:
        """Make one directory, that must not be there."""
        path.mkdir()

    def create(self, path: Path) -> int:
        """Open a file for writing, new or emptied, and give its descriptor. A symbolic link is not followed."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)

    def write(self, descriptor: int, content: memoryview) -> None:
        """Append flat bytes, all of them. Other threads run meanwhile."""
        while content:
            content = content[os.write(descriptor, content) :]

    def begin_sync(self, descriptor: int, offset: int, size: int) -> None:
        """Let the disk begin with bytes that were written, so that `sync` has less to wait for: advice, no more."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)

    def sync(self, descriptor: int) -> None:
        """Make the bytes of a file durable."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a file."""
        os.close(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable, where the file system knows such a thing."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, that must not be there."""
        os.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """Give a file another name, in place of the file that had it."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file, or a symbolic link and not what it leads to."""
        path.unlink()

    def rmdir(self, path: Path) -> None:
        """Remove a directory, that must be empty."""
        path.rmdir()

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        """Keep other processes out that lock the same directory, where the file system has locks. A kill frees it.

        Raises:
            BlockingIOError: Another process has it, and goes on having it for `LONGEST_LOCK`.
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
            with contextlib.suppress(OSError):  # there was no lock
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile has the descriptor, too
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
        """Open a file for `try_lock`, which is made if it is not there, and give its descriptor."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)

    def try_lock(self, descriptor: int) -> bool:
        """Lock a file for this process, until it closes any descriptor of the file or ends; whether no other has it.

        Where the file system has no locks, nobody is kept out.
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
        """Return whether a directory is there. A symbolic link to one is none."""
        try:
            return stat.S_ISDIR(path.lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def is_link(self, path: Path) -> bool:
        """Return whether a symbolic link is there, wherever it leads."""
        return path.is_symlink()

    def status(self, path: Path) -> os.stat_result | None:
        """Give what is known of a file; None if nothing is there."""
        try:
            return path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, path: Path) -> dict[str, bool]:
        """Give the names in a directory, and of each whether it is a directory. A symbolic link to one is none."""
        with os.scandir(path) as entries:
            return {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}

    def read_into(self, path: Path, offset: int, memory: memoryview) -> int:
        """Fill flat memory with a file's bytes from an offset on; give how many there were. Other threads run."""
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
