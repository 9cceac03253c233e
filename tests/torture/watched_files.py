"""A file system that says each operation before it does it, so that it can be killed, failed or recorded there."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from smddp.checkpoint.stores.filesystem import FileSystem


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation that changes a file system or makes a change durable."""

    kind: str
    """The name of the method of FileSystem."""
    path: Path
    target: Path | None = None
    """The new name, of link and replace."""
    content: bytes = b""
    """What is written."""


class WatchedFiles(FileSystem):
    """The real file system, with a look at each operation before it is done."""

    def __init__(self, before: Callable[[Operation], int | None]) -> None:
        """Watch.

        Args:
            before: called with each operation; may raise. Of a write it may give a number: so many bytes are written,
                and it is called again with the rest.
        """
        self.before = before
        self._paths: dict[int, Path] = {}

    def make_directory(self, path: Path) -> None:
        self.before(Operation(kind="make_directory", path=path))
        super().make_directory(path)

    def create(self, path: Path) -> int:
        self.before(Operation(kind="create", path=path))
        descriptor = super().create(path)
        self._paths[descriptor] = path
        return descriptor

    def write(self, descriptor: int, content: memoryview) -> None:
        while content:
            count = self.before(Operation(kind="write", path=self._paths[descriptor], content=bytes(content)))
            super().write(descriptor, content[:count])
            content = content[len(content) if count is None else count :]

    def sync(self, descriptor: int) -> None:
        self.before(Operation(kind="sync", path=self._paths[descriptor]))
        super().sync(descriptor)

    def close(self, descriptor: int) -> None:
        del self._paths[descriptor]
        super().close(descriptor)

    def sync_directory(self, path: Path) -> None:
        self.before(Operation(kind="sync_directory", path=path))
        super().sync_directory(path)

    def link(self, source: Path, target: Path) -> None:
        self.before(Operation(kind="link", path=source, target=target))
        super().link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        self.before(Operation(kind="replace", path=source, target=target))
        super().replace(source, target)

    def unlink(self, path: Path) -> None:
        self.before(Operation(kind="unlink", path=path))
        super().unlink(path)

    def rmdir(self, path: Path) -> None:
        self.before(Operation(kind="rmdir", path=path))
        super().rmdir(path)


class Countdown:
    """Something happens at the n-th point: before an operation, or in the middle of a write."""

    def __init__(self, point: int | None, happen: Callable[[Operation], None]) -> None:
        """Count from 0; with None nothing happens, and `points` says how many there are."""
        self.points = 0
        self._point = point
        self._happen = happen
        self._within: Path | None = None

    def __call__(self, operation: Operation) -> int | None:
        if self.points == self._point:
            self.points += 1
            self._happen(operation)
        else:
            self.points += 1
        if operation.kind != "write" or len(operation.content) < 2 or self._within == operation.path:
            self._within = None
            return None
        self._within = operation.path
        return len(operation.content) // 2


def die(_: Operation) -> None:
    """What SIGKILL does: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(number: int) -> Callable[[Operation], None]:
    """Give what a failing disk does."""

    def happen(operation: Operation) -> None:
        raise OSError(number, os.strerror(number), str(operation.path))

    return happen


class FullDisk:
    """From the n-th point on, whatever needs space fails; removing does not."""

    def __init__(self, point: int, number: int = errno.ENOSPC) -> None:
        self._countdown = Countdown(point, self._fill)
        self._fail = fail(number)
        self.is_full = False

    @property
    def points(self) -> int:
        """How many there were."""
        return self._countdown.points

    def __call__(self, operation: Operation) -> int | None:
        count = self._countdown(operation)
        if self.is_full and operation.kind not in ("unlink", "rmdir", "sync_directory"):
            self._fail(operation)
        return count

    def _fill(self, _: Operation) -> None:
        self.is_full = True
