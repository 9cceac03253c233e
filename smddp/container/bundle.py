"""Unpacks archives that come from whoever may write to a bucket: the bundle of training code, what a job has left.

Nothing in one may land, or point, outside its directory, nor fill the disk or the memory, whatever its headers say.
It is unpacked beside its place and moved there once it has been read to its end: one that is refused leaves nothing.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from smddp.container.bundle_links import RefusedLinkError, check_links
from smddp.errors import SourceError
from smddp.storage.tar_gz import BadArchiveError, reading_tar_gz
from smddp.storage.tar_header import DIRECTORY, HARD_LINK, SYMBOLIC_LINK, BadHeaderError, Header

MAX_MEMBERS = 100_000
MAX_BYTES = 10 * 2**30
"""Bounds on what one bundle may unpack to: far above any code, far below a disk."""
MAX_NAME_BYTES = 1024
"""Bytes of a path. Directories within directories are no deeper than half as many."""

_HEADER_BYTES = 4096  # of a member beside its data, with some padding, by far
_SPECIAL_BITS = 0o6000  # setuid, setgid
_PIECE = 2**20  # bytes copied at a time


def unpack(archive: Path, directory: Path, *, name: str, most_bytes: int | None = None) -> None:
    """Unpack a .tar.gz into a directory: all of it, or nothing if it is refused.

    Args:
        archive: Where it is.
        directory: Where it goes. Files that are there already stay, unless the bundle holds them too.
        name: What errors begin with.
        most_bytes: What it may unpack to; by default `MAX_BYTES`.

    Raises:
        SourceError: It is damaged, or a member would leave the directory, is no file, directory or link, has the
            setuid or setgid bit, can't take the place of what is there, or there is too much of it.
    """
    try:
        # Inside of the directory: it may be a mount of its own, or the working directory of who runs.
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=directory) as temporary:
            room = MAX_BYTES if most_bytes is None else most_bytes
            tree = _Tree(Path(temporary), name, room)
            most = room + MAX_MEMBERS * _HEADER_BYTES
            with reading_tar_gz(archive, name, most=most) as members:
                while (member := members.next()) is not None:
                    tree.add(member.header, members.pieces(member))
            tree.make_links()
            tree.check_places(directory)
            _move(tree.root, directory)
    except (BadArchiveError, BadHeaderError, OSError) as error:
        raise SourceError(f"{name} can't be unpacked as a .tar.gz: {error}.") from error


class _Tree:
    """What was unpacked so far. It has no symbolic links until all else is there: nothing is written through one."""

    def __init__(self, root: Path, archive: str, room: int) -> None:
        self.root = root
        self._archive = archive
        self._room = room
        self._links: dict[PurePosixPath, str] = {}
        self._members = 0
        self._bytes = 0

    def add(self, header: Header, data: Iterable[bytes]) -> None:
        """Unpack a member."""
        path = PurePosixPath(header.name)
        self._check(path, header)
        target = self.root / path
        if header.kind == SYMBOLIC_LINK:
            self._links[path] = header.link
        else:
            self._links.pop(path, None)  # of two with one name the last counts
            (target if header.kind == DIRECTORY else target.parent).mkdir(parents=True, exist_ok=True)
            if header.kind == HARD_LINK:
                self._copy(header, target)
            elif header.kind != DIRECTORY:
                self._count(header, header.size)
                _write(target, data, header.mode)
        for _ in data:  # what has none by right may have some
            pass

    def make_links(self) -> None:
        """Make the symbolic links, which lead nowhere but to what was unpacked."""
        try:
            check_links(self._links)
        except RefusedLinkError as error:
            raise self._refusal(error.link, error.problem) from None
        for path, target in self._links.items():
            link = self.root / path
            if _is_directory(link):
                raise self._refusal(str(path), "it is a link, and others lie in a directory of that name")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    def check_places(self, directory: Path) -> None:
        """See that each can go to its place in a directory: a file takes a file's place, and no directory's."""
        for entry, place in _moves(self.root, directory):
            if os.path.lexists(place) and _is_directory(entry) != _is_directory(place):
                kinds = ("file", "directory") if _is_directory(place) else ("directory", "file")
                problem = f"it is a {kinds[0]}, and the directory has a {kinds[1]} there"
                raise self._refusal(str(entry.relative_to(self.root)), problem)

    def _check(self, path: PurePosixPath, header: Header) -> None:
        self._members += 1
        problem = _problem(path, header)
        if problem is None and (link := next((parent for parent in path.parents if parent in self._links), None)):
            problem = f"it lies behind the link {link}"
        if self._members > MAX_MEMBERS:
            problem = f"it is one more than the {MAX_MEMBERS:,} members that are allowed"
        if problem is not None:
            raise self._refusal(header.name, problem)

    def _copy(self, header: Header, target: Path) -> None:
        """Unpack a hard link, as the copy of a file: so it counts."""
        name = PurePosixPath(header.link)
        original = self.root / name
        if name.is_absolute() or ".." in name.parts or name in self._links or not original.is_file():
            problem = f"it is a hard link to {header.link}, which is no file before it in the archive"
            raise self._refusal(header.name, problem)
        status = original.stat()
        self._count(header, status.st_size)
        if original != target:
            with original.open("rb") as file:
                _write(target, iter(functools.partial(file.read, _PIECE), b""), status.st_mode)

    def _count(self, header: Header, size: int) -> None:
        self._bytes += size
        if self._bytes > self._room:
            raise self._refusal(header.name, f"with it the archive unpacks to more than {self._room:,} bytes")

    def _refusal(self, member: str, problem: str) -> SourceError:
        return SourceError(f"{self._archive} is refused: member {member!r}: {problem}.")


def _problem(path: PurePosixPath, header: Header) -> str | None:
    longest = max(len(os.fsencode(name)) for name in (header.name, header.link))
    if longest > MAX_NAME_BYTES:
        return f"its name, or where it links to, has {longest:,} bytes; {MAX_NAME_BYTES:,} are allowed"
    if "\0" in header.name or "\0" in header.link:
        return "its name holds a NUL, which no file's can"
    if path.is_absolute():
        return "its path is absolute"
    if ".." in path.parts:
        return "its path holds '..'"
    if not header.is_file and header.kind not in (DIRECTORY, SYMBOLIC_LINK, HARD_LINK):
        return "it is neither file, directory nor link"
    if header.is_file and header.mode & _SPECIAL_BITS:
        return f"it has the setuid or setgid bit (mode {header.mode:o})"
    if header.kind == SYMBOLIC_LINK:
        target = os.path.normpath(path.parent / header.link)
        if target.startswith(("/", "../")) or target == "..":
            return f"it links to {header.link}, outside its directory"
    return None


def _write(target: Path, data: Iterable[bytes], mode: int) -> None:
    target.unlink(missing_ok=True)
    with target.open("xb") as file:
        file.writelines(data)
    target.chmod(0o644 | mode & 0o111)


def _move(source: Path, target: Path) -> None:
    """Move all that is in one directory to another, into the directories that are there already."""
    for entry, place in _moves(source, target):
        entry.replace(place)


def _moves(source: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if _is_directory(entry) and place.is_dir():
            yield from _moves(entry, place)
        else:
            yield entry, place


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
