"""What a file system can refuse: its errors as one of ours that says what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from smddp.checkpoint.stores.store import StoreError

_TRANSIENT = {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT}
_FULL = "free some space there, or keep fewer checkpoints"
_BARRED = "let this user write there, or save somewhere else"
_UNREADABLE = "let this user read it, and enter the directories above it"
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _BARRED,
    errno.EPERM: _BARRED,
    errno.EROFS: "make it writable, or save somewhere else",
    errno.ENOTDIR: "move the file away that is in the place of a directory, or save somewhere else",
    errno.EIO: "the disk or the way to it fails: see the kernel's log (dmesg)",
    errno.ENOENT: "something else removed it while it was in use",
    errno.EISDIR: "move the directory away that is in the place of a file",
    errno.EWOULDBLOCK: "find it (lsof, fuser; on other hosts, too, if they share the directory): it may hang, or be a "
    "second run that shares the directory",
}


@contextlib.contextmanager
def telling(action: str, path: Path) -> Iterator[None]:
    """Say what was tried and what to do when the file system fails."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "earlier checkpoints are as they were")
        if action == "read" and advice == _BARRED:
            advice = _UNREADABLE
        raise StoreError(
            f"cannot {action} {path}: {error.strerror or error}; {advice}", transient=error.errno in _TRANSIENT
        ) from error


@contextlib.contextmanager
def telling_if_barred(path: Path) -> Iterator[None]:
    """Say what to do when this user may not read; of other errors the reader makes what they mean."""
    try:
        yield
    except PermissionError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}; {_UNREADABLE}") from error
