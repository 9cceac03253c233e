"""Translate file system errors to StoreError, with advice on what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from smddp.checkpoint.stores.store import StoreError

_TRANSIENT = {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT}
MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
"""Error codes of an absent file, or of a path that is no file. Other codes say nothing about the file."""
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
    errno.EIO: f"{_FAILING}; if it is lost for good, move its checkpoint away to go on from the one before",
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
