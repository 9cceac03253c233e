"""What may be on a disk after the power was lost: all that was made durable, and anything of what was not.

The model promises no more than POSIX does. A file's bytes are durable after its fsync, a name after the fsync of its
directory. Of a file's other bytes any may be there, zero or missing. Of the other names any may be there, old or new,
each by itself: one half of a rename without the other, a name whose file is empty, a directory in which nothing is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture.watched_files import Operation

_SECTOR = 32  # bytes that are written together; small, as the files are


@dataclass(eq=False, slots=True)
class File:
    """An inode with bytes."""

    content: bytes = b""
    versions: list[bytes] = field(default_factory=lambda: [b""])
    """What it was when it was last durable, and after each change since."""

    def change(self, content: bytes) -> None:
        self.content = content
        self.versions.append(content)

    def sync(self) -> None:
        self.versions = [self.content]

    def survivor(self, chance: random.Random) -> bytes:
        """Give what may be there of it."""
        old, new = self.versions[0], chance.choice(self.versions)
        if old == new:
            return old
        content = bytearray(new[: chance.choice((len(new), chance.randint(0, len(new))))])
        for start in range(0, len(content), _SECTOR):
            length = len(content[start : start + _SECTOR])
            if chance.random() < 0.2:
                content[start : start + length] = old[start : start + length].ljust(length, b"\0")
        return bytes(content)


@dataclass(eq=False, slots=True)
class Directory:
    """An inode with names."""

    entries: dict[str, File | Directory] = field(default_factory=dict)
    changes: dict[str, list[File | Directory | None]] = field(default_factory=dict)
    """What each name was when it was last durable, and after each change since."""

    def change(self, name: str, inode: File | Directory | None) -> None:
        self.changes.setdefault(name, [self.entries.get(name)]).append(inode)
        if inode is None:
            del self.entries[name]
        else:
            self.entries[name] = inode

    def sync(self) -> None:
        self.changes.clear()

    def survivors(self, chance: random.Random | None) -> Iterator[tuple[str, File | Directory]]:
        """Give what names may be there; without chance only those that are durable."""
        for name in {**self.entries, **self.changes}:
            states = self.changes.get(name) or [self.entries[name]]
            inode = chance.choice(states) if chance else states[0]
            if inode is not None:
                yield name, inode


class Disk:
    """A tree of directories and files, with all that is not durable yet."""

    def __init__(self, root: Path) -> None:
        """Take over what is in a directory, all of it as durable."""
        self._root = root
        self._tree = _take_over(root)

    def apply(self, operation: Operation) -> None:
        """Do what the operation does; nothing if it fails, or is done above what is recorded."""
        if operation.path in self._root.parents:
            return
        parent, name = self._parent(operation.path)
        found = parent.entries.get(name)
        match operation.kind:
            case "make_directory" if found is None:
                parent.change(name, Directory())
            case "create" if found is None:
                parent.change(name, File())
            case "create":
                assert isinstance(found, File)
                found.change(b"")
            case "write":
                assert isinstance(found, File)
                found.change(found.content + operation.content)
            case "sync" | "sync_directory":
                inode = self._tree if operation.path == self._root else found
                assert inode is not None
                inode.sync()
            case "unlink" if found is not None:
                parent.change(name, None)
            case "rmdir" if isinstance(found, Directory) and not found.entries:
                parent.change(name, None)
            case "link" | "replace":
                assert operation.target is not None
                assert found is not None
                beside, new_name = self._parent(operation.target)
                if operation.kind == "replace":
                    parent.change(name, None)
                    beside.change(new_name, found)
                elif new_name not in beside.entries:
                    beside.change(new_name, found)

    def survive(self, root: Path, chance: random.Random | None) -> None:
        """Write what may be left into a new directory; without chance nothing that is not durable."""
        _write(self._tree, root, chance, {})

    def _parent(self, path: Path) -> tuple[Directory, str]:
        if path == self._root or self._root not in path.parents:
            return Directory(), path.name  # above what is recorded
        directory = self._tree
        for name in path.relative_to(self._root).parts[:-1]:
            inner = directory.entries.get(name)
            assert isinstance(inner, Directory), path
            directory = inner
        return directory, path.name


def _take_over(path: Path) -> Directory:
    directory = Directory()
    for each in path.iterdir():
        if each.is_dir():
            directory.entries[each.name] = _take_over(each)
        else:
            content = each.read_bytes()
            directory.entries[each.name] = File(content=content, versions=[content])
    return directory


def _write(directory: Directory, path: Path, chance: random.Random | None, contents: dict[File, bytes]) -> None:
    path.mkdir()
    for name, inode in directory.survivors(chance):
        if isinstance(inode, Directory):
            _write(inode, path / name, chance, contents)
            continue
        if inode not in contents:  # a file with two names has the same bytes under both
            contents[inode] = inode.survivor(chance) if chance else inode.versions[0]
        (path / name).write_bytes(contents[inode])
