"""One host's /opt/ml as its program left it, read and written without ever leaving the tree.

The program is not trusted with this machine's files. A container's root may put links in /opt/ml, or replace any
directory in it by a link, whose target means something else on this machine. So each name is resolved by hand, one
component at a time from the tree's root. A link goes where the program saw it go: a target below /opt/ml starts at the
root. A name that leads out of the tree counts as absent, and the host's log says so.

Only the root itself is trusted: it belongs to the platform.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePath, PurePosixPath

logger = logging.getLogger(__name__)
_ML_ROOT = PurePosixPath("/opt/ml")
_MOST_TURNS = 40
"""Limit of links followed for one name, the same as Linux's."""
_MOST_SHOWN = 300
"""Limit of characters of a name in a log line: a path may have any length, and the reason must fit, too."""
_MOST_SAID = 1000
"""Limit of paths in one host's log: a program can make new ones without end."""

_MOST_OPEN = 64
"""Limit of open directories on the way down. Going up beyond them opens the way anew from the top, once for as many
levels."""
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that identify a name without opening it for reading or writing, which may block or have side effects."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_CONTENT = {
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}
"""File types without content to copy: neither a directory, a file nor a link."""


class LeadsOutError(OSError):
    """A link in a tree leads out of it."""

    def __init__(self, path: PurePath) -> None:
        super().__init__(errno.EXDEV, "It leads out of /opt/ml", str(path))


class HostTree:
    """One host's /opt/ml.

    ``root`` is its directory on this machine, ``seen_as`` the path that the host's program sees, and ``say`` writes a
    line into the host's log.
    """

    def __init__(
        self, root: Path, *, seen_as: PurePath = _ML_ROOT, say: Callable[[str], None] = logger.warning
    ) -> None:
        self._root = root
        self._seen_as = seen_as
        self._say = say
        self._said: set[PurePath] = set()

    @property
    def root(self) -> Path:
        """The directory on this machine, for files that are written before the program runs."""
        return self._root

    def entries(
        self, folder: PurePath, *, unread: Callable[[OSError], None] = lambda _: None
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the relative path of each file and link below a folder, with its own status, not a link target's.

        Skip unreadable directories, named pipes, sockets and devices, and name them in the host's log. ``unread`` is
        called for each unreadable directory, the folder included, and may raise. An absent folder has no entries.
        """

        def failed(name: str, error: OSError) -> None:
            path = folder / name
            if error.errno == errno.ENOTDIR:
                self.tell(path, "is no directory")
            else:
                self.tell(path, f"can't be read as a directory by this user: {error.strerror}")
            unread(OSError(error.errno, error.strerror, str(self._seen_as / path)))

        try:
            place = self._open(folder)
        except LeadsOutError:
            self._pass_over(folder)
            unread(LeadsOutError(self._seen_as / folder))
        except FileNotFoundError:
            pass
        except OSError as error:
            failed(".", error)
        else:
            try:
                for name, status in walk(place, failed):
                    kind = _NO_CONTENT.get(stat.S_IFMT(status.st_mode))
                    if kind is None:
                        yield name, status
                    else:
                        self.tell(folder / name, f"is left out: it is a {kind}")
            finally:
                os.close(place)

    def status(self, path: PurePath) -> os.stat_result | None:
        """Return the status of a name after following all links; None if it is absent."""
        try:
            with self._found(path) as place:
                return place.stat()
        except LeadsOutError:
            self._pass_over(path)
        except OSError:
            pass
        return None

    def tell(self, path: PurePath, what: str) -> None:
        """Write a line about a path into the host's log, once for each path."""
        if path in self._said or len(self._said) > _MOST_SAID:
            return
        self._said.add(path)
        if len(self._said) <= _MOST_SAID:
            self._say(f"[platform] {legible(str(self._seen_as / path))} {what}")
        else:
            self._say(f"[platform] {_MOST_SAID:,} paths were reported; further ones are not")

    @contextmanager
    def reading(self, path: PurePath) -> Iterator[Path]:
        """Yield a local path of a file. It leads to the same file for the whole block.

        Raise OSError if there is no file, and its subclass `LeadsOutError` if a link leads out of the tree.
        """
        with self._found(path) as place:
            if not place.is_file():
                raise FileNotFoundError(errno.ENOENT, "There is no file", str(path))
            yield place

    def read_link(self, path: PurePath) -> str:
        """Return the target of a link as it is written."""
        place = self._open(path, follow=False)
        try:
            return os.readlink("", dir_fd=place)
        finally:
            os.close(place)

    def make_pipe(self, path: PurePath) -> None:
        """Make a named pipe."""
        with self._found(path.parent) as folder:
            os.mkfifo(folder / path.name)

    def open_pipe(self, path: PurePath) -> int:
        """Open a named pipe for writing without blocking, and return its descriptor.

        Raise OSError: ENXIO if no process reads from it, EINVAL if the program has replaced it by something else.
        """
        place = self._open(path, follow=False)
        try:
            if not stat.S_ISFIFO(os.fstat(place).st_mode):
                raise OSError(errno.EINVAL, "The program has put something else in the pipe's place", str(path))
            return os.open(_by_descriptor(place), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(place)

    def remove(self, path: PurePath) -> None:
        """Remove a file, a pipe or a link, if it is there."""
        with self._found(path.parent) as folder:
            (folder / path.name).unlink(missing_ok=True)

    @contextmanager
    def _found(self, path: PurePath) -> Iterator[Path]:
        """Yield a path of this machine that keeps naming the file found, whatever happens to its name meanwhile.

        Errors of the block name the path that the program sees, because the path of a descriptor tells a reader
        nothing.
        """
        place = self._open(path)
        given = _by_descriptor(place)
        try:
            yield given
        except OSError as error:
            if isinstance(error.filename, str | Path) and (named := Path(error.filename)).is_relative_to(given):
                error.filename = str(self._seen_as / path / named.relative_to(given))
            raise
        finally:
            os.close(place)

    def _open(self, path: PurePath, *, follow: bool = True) -> int:
        """Return an O_PATH descriptor of a name in the tree; without ``follow``, of a final link itself."""
        here = self._open_root()
        try:
            passed: list[str] = []
            ahead = list(path.parts)
            turns = 0
            while ahead:
                name = ahead.pop(0)
                if name != "..":
                    here = _exchange(here, os.open(name, _LOOK, dir_fd=here))
                    passed.append(name)
                    if not stat.S_ISLNK(os.fstat(here).st_mode) or not (ahead or follow):
                        continue
                turns += 1
                if turns > _MOST_TURNS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                # Start again from the root: `_turn` resolves ``..`` and relative targets by the names passed, never by
                # the kernel.
                ahead = [*self._turn(path, here, name, passed), *ahead]
                here, passed = _exchange(here, self._open_root()), []
        except BaseException:
            os.close(here)
            raise
        return here

    def _turn(self, path: PurePath, here: int, name: str, passed: list[str]) -> list[str]:
        """Return the components, from the root, of what ``..`` or the link ``name`` leads to."""
        if name == "..":
            if not passed:
                raise LeadsOutError(path)
            return passed[:-1]
        target = PurePosixPath(os.readlink("", dir_fd=here))
        if not target.is_absolute():
            return [*passed[:-1], *target.parts]
        if not target.is_relative_to(self._seen_as):
            raise LeadsOutError(path)
        return list(target.relative_to(self._seen_as).parts)

    def _open_root(self) -> int:
        return os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def _pass_over(self, path: PurePath) -> None:
        self.tell(path, f"is passed over: it leads out of {self._seen_as}")


def walk(top: int, failed: Callable[[str, OSError], None]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each entry below a directory except directories: its path, and its own status, not a link target's.

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
    """The directories from the top to the current one; the deepest are open."""

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
        """Return the path of a directory's entry, relative to the top; the directory is open at ``depth - 1``."""
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


def legible(name: str) -> str:
    """Return a name that a program chose for a log line: escaped if it is not printable, shortened if it is long."""
    if len(name) > _MOST_SHOWN:
        name = f"{name[: _MOST_SHOWN // 2]} … {name[-_MOST_SHOWN // 2 :]}"
    return name if name.isprintable() else ascii(name)


def _exchange(old: int, new: int) -> int:
    os.close(old)
    return new


def _by_descriptor(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")
