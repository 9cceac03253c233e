"""Walk a directory of any depth: without recursion, without long paths, with few descriptors.

Each directory is opened by its name in its parent, and never through a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

_MOST_OPEN = 64
"""Limit of open directories on the way down. Going up further opens the way again from the top, once for as many
levels."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def walk(top: int, failed: Callable[[str, OSError], None]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each entry below a directory that is no directory: its path, and its own status, not a link target's.

    ``top`` is a descriptor of the directory. ``failed`` is called with each directory that can't be read, and the
    error.
    """
    with closing(_Way(top)) as way:
        pending: list[tuple[int, str]] = [(0, ".")]
        while pending:
            depth, name = pending.pop()
            try:
                entries = _list(way.enter(depth, name))
            except FileNotFoundError:
                continue  # it is gone by now
            except OSError as error:
                failed(way.path(depth, name), error)
                continue
            folders = []
            for entry, status in entries:
                if stat.S_ISDIR(status.st_mode):
                    folders.append((depth + 1, entry))
                else:
                    yield way.path(depth + 1, entry), status
            pending += reversed(folders)


class _Way:
    """The directories from the top to the position of the walk; the lowest of them are open."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._names: list[str] = []
        self._open: dict[int, int] = {}
        """Descriptors by depth."""

    def enter(self, depth: int, name: str) -> int:
        """Enter a directory in the one at ``depth - 1``, and return its descriptor, open until the walk leaves it."""
        for deeper in [at for at in self._open if at >= depth]:
            os.close(self._open.pop(deeper))
        del self._names[depth:]
        if depth and depth - 1 not in self._open:
            self.close()
            for at, above in enumerate(self._names):
                self._descend(at, above)
        self._descend(depth, name)
        self._names.append(name)
        return self._open[depth]

    def path(self, depth: int, name: str) -> str:
        """Return the path of ``name`` at this depth from the top."""
        return "/".join([*self._names[1:depth], name])

    def close(self) -> None:
        """Close all open directories."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def _descend(self, depth: int, name: str) -> None:
        self._open[depth] = os.open(name, _OPEN, dir_fd=self._open[depth - 1] if depth else self._top)
        if (left := self._open.pop(depth - _MOST_OPEN, None)) is not None:
            os.close(left)


def _list(directory: int) -> list[tuple[str, os.stat_result]]:
    entries = []
    with os.scandir(directory) as listing:
        for entry in listing:
            with suppress(FileNotFoundError):  # it is gone by now
                entries.append((entry.name, entry.stat(follow_symlinks=False)))
    return sorted(entries)
