"""Unpacks untrusted archives: the bundle of training code, and a job's output.

No member may be written, or link, outside the target directory, or fill the disk or the memory.

1. Unpack files and directories into a temporary directory inside the target, without symbolic links, so that nothing is
   written through a link.
2. Check all links, and make them.
3. Check that each entry can take its place in the target, and move the entries there. A refused archive leaves nothing
   behind.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from smddp.errors import SourceError
from smddp.storage.untrusted_tar import (
    DIRECTORY,
    HARD_LINK,
    SYMBOLIC_LINK,
    BadArchiveError,
    BadHeaderError,
    Header,
    reading_tar_gz,
)

MAX_MEMBERS = 100_000
MAX_BYTES = 10 * 2**30
"""The most members and bytes of one unpacked bundle: far more than any code, far less than a disk."""
MAX_NAME_BYTES = 1024
"""Bytes of a path. This also bounds the depth of nested directories, to half as many."""

_HEADER_BYTES = 4096  # more than a member's header and padding
_SPECIAL_BITS = 0o6000  # setuid, setgid
_PIECE = 2**20  # bytes copied at a time
_MOST_TURNS = 40
"""The number of links that Linux itself follows for one name."""


def unpack(archive: Path, directory: Path, *, name: str, most_bytes: int | None = None) -> None:
    """Unpack a .tar.gz into a directory, completely or not at all; existing files stay unless the archive has them.

    ``name`` names the archive in errors; ``most_bytes`` bounds the unpacked size (default: `MAX_BYTES`). Raise
    SourceError if the archive is damaged or too large, or if a member leaves the directory, is a special file, has the
    setuid or setgid bit, or can't replace an existing entry.
    """
    try:
        # Inside the directory, which may be a mount or the working directory: so the move is a rename.
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
    """The members unpacked so far. Symbolic links are made last, so nothing is written through one."""

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
            self._links.pop(path, None)  # of two members with one name the last counts
            (target if header.kind == DIRECTORY else target.parent).mkdir(parents=True, exist_ok=True)
            if header.kind == HARD_LINK:
                self._copy(header, target)
            elif header.kind != DIRECTORY:
                self._count(header, header.size)
                _write(target, data, header.mode)
        for _ in data:  # read on to the next member: even links and directories may have data
            pass

    def make_links(self) -> None:
        """Make the symbolic links, after checking that they stay inside the tree."""
        try:
            _check_links(self._links)
        except _RefusedLinkError as error:
            raise self._refusal(error.link, error.problem) from None
        for path, target in self._links.items():
            link = self.root / path
            if _is_directory(link):
                raise self._refusal(str(path), "it is a link, and others lie in a directory of that name")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    def check_places(self, directory: Path) -> None:
        """Check that each entry can take its place: a file replaces only a file, and a directory only a directory."""
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
        """Unpack a hard link as a copy of its file, so that its bytes count."""
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
    """Move all entries of a directory to another one, merging directories."""
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


class _RefusedLinkError(Exception):
    """The link at a path leads outside the tree, or through too many links."""

    def __init__(self, link: str, problem: str) -> None:
        super().__init__(link, problem)
        self.link = link
        self.problem = problem


def _check_links(links: Mapping[PurePosixPath, str]) -> None:
    """Check that all links, given as relative targets by path, stay in the tree; raise RefusedLinkError otherwise.

    A path has no link among its parents. A chain of more than `_MOST_TURNS` links is refused, too. The disk is not
    read. Each link is followed once and cached, so the work is proportional to the links' length.
    """
    table = _Table({str(path): target for path, target in links.items()})
    for path in table.links:
        _, turns = table.follow(path, depth=1)
        if turns > _MOST_TURNS:
            raise _RefusedLinkError(path, f"it leads through more than {_MOST_TURNS} links")


class _Table:
    """The links by path. Paths are text without a slash at either end; the root is the empty text."""

    def __init__(self, links: Mapping[str, str]) -> None:
        self.links = links
        self._followed: dict[str, tuple[str, int]] = {}
        self._open: set[str] = set()

    def follow(self, link: str, *, depth: int) -> tuple[str, int]:
        """Return a link's target, and the number of links to it, this one included; ``depth`` counts the open links.

        If the number exceeds MOST_TURNS, the target is not final.
        """
        if (followed := self._followed.get(link)) is not None:
            return followed
        if depth > _MOST_TURNS:
            return link, depth
        self._open.add(link)
        followed = self._followed[link] = self._walk(link, depth)
        self._open.remove(link)
        return followed

    def _walk(self, link: str, depth: int) -> tuple[str, int]:
        here = link.rpartition("/")[0]
        turns = 1
        for part in self.links[link].split("/"):
            if part in ("", "."):
                continue
            if part == "..":
                if not here:
                    raise _RefusedLinkError(link, f"it links to {self.links[link]}, outside its directory")
                here = here.rpartition("/")[0]
                continue
            here = f"{here}/{part}" if here else part
            # Links in a circle have no target. They count as directories, so that `..` behind them is checked as well.
            if here in self.links and here not in self._open:
                here, more = self.follow(here, depth=depth + 1)
                turns += more
                if turns > _MOST_TURNS:
                    break
        return here, turns
