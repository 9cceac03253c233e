"""Checkpoints in a directory: an order of operations that is safe under kill and power loss at any point.

Notes on a save, in order. After each of them a reader finds the former checkpoint of this training step, if any, or the
complete new one.
  1. `write` creates each file of the attempt and flushes its bytes (fsync). Nothing refers to the attempt yet.
  2. `commit` writes and flushes the manifest under a partial name, in the attempt's directory.
  3. `commit` flushes the names: the attempt's directory, the step's directory, the root.
  4. Under the step's lock, `commit` compares the existing manifest with the expected one, and links (or renames) the
     partial manifest to its final name. This is the commit point.
  5. `commit` flushes the step's directory: the commit is durable.
Removal is the reverse: first the manifest, flushed, then the files.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from smddp.checkpoint.format.manifest import LARGEST_MANIFEST, MANIFEST_NAME, is_attempt_name
from smddp.checkpoint.stores.directory_hold import DirectoryHold
from smddp.checkpoint.stores.filesystem import FileSystem, telling, telling_unless_missing
from smddp.checkpoint.stores.owner_record import Owner
from smddp.checkpoint.stores.store import (
    PARTIAL_SUFFIX,
    AlreadyCommittedError,
    StoreError,
    existing_manifest,
    is_ours,
    mentions,
    path_in_step,
    removed_beside,
    step_name,
    step_of,
)
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)

_WRITE_SIZE = 8 * 2**20
"""Bytes written between two requests to start writeback. A single fsync at the end would leave the disk idle until
then; starting early takes 0.4 to 0.7 times as long (measured)."""
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
_NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST}


class DirectoryStore:
    """Checkpoints as directories ``step-000000001234`` in one directory.

    Invariant: a manifest exists only while all its files exist.

    Symbolic links inside the directory are followed for reading only: the digest verifies the target's bytes. Nothing
    is written or removed through a link. Removing a step that is a link removes the link.
    """

    read_size = 2 * 2**20  # the processor's cache still holds it when it is hashed
    readers = 2

    def __init__(self, root: str | os.PathLike[str], *, files: FileSystem | None = None) -> None:
        """Use this directory; `check_writable` or the first `write` creates it with its parents."""
        self.root = Path(root).absolute()
        self._files = files or FileSystem()
        self._root_is_durable = False

    def __str__(self) -> str:
        """Return the directory."""
        return str(self.root)

    def path(self, step: int) -> str:
        """Return the directory of a step."""
        return str(self._step(step))

    def check_writable(self) -> None:
        """Create the directory and write one byte into it. Raise StoreError if either fails."""
        probe = self.root / ("writable" + PARTIAL_SUFFIX)
        with telling("write to", self.root):
            self._make_root()
            self._write(probe, [memoryview(b"?")])
            self._files.unlink(probe)

    def hold(self, owner: Owner, *, make: bool) -> DirectoryHold | None:
        """Lock the directory; None if it is absent and `make` is false."""
        with telling("write to", self.root):
            if make:
                self._make_root()
            return DirectoryHold(self._files, self.root, owner) if self.root.is_dir() else None

    def steps(self) -> list[int]:
        """Return all steps, oldest first."""
        with telling("read", self.root):
            try:
                names = self._files.names(self.root)
            except FileNotFoundError:
                return []
            return sorted(
                step
                for name, is_directory in names.items()
                if (step := step_of(name)) is not None and (is_directory or self._leads_to_directory(self.root / name))
            )

    def newest_first(self) -> Iterator[int]:
        """Return all steps, newest first."""
        return reversed(self.steps())

    def attempts(self, step: int) -> list[str]:
        """Return the directory names of all attempts of a step."""
        with telling("read", self._step(step)):
            if not self._files.is_directory(self._step(step)):
                return []
            names = self._files.names(self._step(step))
        return sorted(name for name, is_directory in names.items() if is_directory and is_attempt_name(name))

    def write(self, step: int, directory: str, name: str, content: Sequence[memoryview]) -> None:
        """Write one file of an attempt and flush its bytes."""
        path = self._step(step) / path_in_step(directory, name)
        with telling("write", path):
            self._make_root()
            self._make_attempt(path.parent)
            self._write(path, content)

    def commit(self, step: int, directory: str, manifest: bytes, *, replacing: bytes | None) -> None:
        """Flush the file names, then publish the manifest under its final name (notes 2 to 5 above)."""
        final = self._step(step) / MANIFEST_NAME
        attempt = self._step(step) / directory
        partial = attempt / (MANIFEST_NAME + PARTIAL_SUFFIX)
        with telling("write", final):
            if self._files.status(partial) is not None:
                # After a failed try it may be a hard link to the manifest, which must not be overwritten.
                self._files.unlink(partial)
            self._write(partial, [memoryview(manifest)])
            for path in (attempt, self._step(step), self.root):
                self._files.sync_directory(path)
            # The lock makes compare and swap one operation among all processes that see it. No other lock is taken
            # inside, and `LONGEST_LOCK` bounds the wait.
            with self._files.lock(self._step(step)):
                try:
                    existing = self.read_manifest(step)
                except StoreError:
                    raise
                except CheckpointError as error:
                    raise CheckpointError(f"cannot write {final}: {error}") from error
                if existing not in (replacing, manifest):
                    raise self._already_committed(step)
                if existing is None:
                    self._put(partial, final, step, manifest)
                elif existing != manifest:
                    self._files.replace(partial, final)
            self._files.sync_directory(self._step(step))
        # The commit is durable. A partial name that is left over never counts.
        with contextlib.suppress(OSError):
            self._files.unlink(partial)

    def read_manifest(self, step: int) -> bytes | None:
        """Return the manifest's bytes; None if absent."""
        return self._read_small(self._step(step) / MANIFEST_NAME, LARGEST_MANIFEST)

    def size(self, step: int, directory: str, name: str) -> int | None:
        """Return the size of a file in bytes; None if absent."""
        path = self._step(step) / path_in_step(directory, name)
        with telling_unless_missing(path):
            found = self._files.status(path)
        return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else None

    def read_into(self, step: int, directory: str, name: str, offset: int, memory: memoryview) -> None:
        """Fill memory with the bytes of a file, starting at `offset`."""
        path = self._step(step) / path_in_step(directory, name)
        try:
            flat = memory.cast("B") if memory.nbytes else memoryview(b"")
            with telling_unless_missing(path):
                count = self._files.read_into(path, offset, flat)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CheckpointError(f"{name} is missing") from error
        if count < memory.nbytes:
            raise CheckpointError(f"{name} ends after {offset + count} of at least {offset + memory.nbytes} bytes")

    def discard(self, step: int, directory: str) -> None:
        """Remove the files of an attempt, unless the manifest names the attempt."""
        assert directory == "" or is_attempt_name(directory), directory
        path = self._step(step)
        existing = existing_manifest(self, step)
        if existing is not None and mentions(existing, directory):
            logger.warning("left the files of %s in place: they are the checkpoint", path / directory)
            return
        with telling("remove", path / directory):
            if self._files.is_directory(path):
                self._remove_directory(path / directory)
                self._remove_if_empty(path)

    def remove(self, step: int) -> None:
        """Remove our files of a step, the manifest first: a removal that is interrupted leaves no checkpoint."""
        path = self._step(step)
        with telling("remove", path):
            if self._files.is_link(path):
                self._files.unlink(path)
                self._files.sync_directory(self.root)
            if not self._files.is_directory(path):
                return
            beside = self._removed_beside(step)
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(path / MANIFEST_NAME)
            self._files.sync_directory(path)
            for directory in self.attempts(step):
                self._remove_directory(path / directory)
            for name in beside:
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(path / name)
            if not self._remove_if_empty(path):
                logger.info("left %s in place: it holds files that are not a checkpoint's", path)

    def write_beside(self, directory: str, name: str, content: bytes) -> None:
        """Write a file under a partial name, flush its bytes, and rename it.

        The name is not flushed: a loss of power may bring the file's earlier content back.
        """
        path = self.root / directory / name
        partial = path.with_name(name + PARTIAL_SUFFIX)
        with telling("write", path):
            self._make(path.parent)
            self._write(partial, [memoryview(content)])
            self._files.replace(partial, path)

    def names_beside(self, directory: str) -> list[str]:
        """Return the names of the files in a directory beside the steps."""
        path = self.root / directory
        with telling("read", path):
            names = self._files.names(path) if self._files.is_directory(path) else {}
        return [name for name, is_directory in names.items() if not is_directory]

    def read_beside(self, directory: str, name: str, *, largest: int) -> bytes | None:
        """Return a file beside the steps; None if absent."""
        return self._read_small(self.root / directory / name, largest)

    def _read_small(self, path: Path, largest: int) -> bytes | None:
        """Return a file; None if absent. Raise CheckpointError if it is no file, or has more than `largest` bytes."""
        with telling_unless_missing(path):
            found = self._files.status(path)
            if found is None:
                return None
            if not stat.S_ISREG(found.st_mode):
                raise CheckpointError(f"{path.name} is not a file, but a directory for instance: move that away")
            if found.st_size > largest:
                raise CheckpointError(f"{path.name} is not a file of at most {largest} bytes")
            content = bytearray(found.st_size)
            try:
                return bytes(content[: self._files.read_into(path, 0, memoryview(content))])
            except FileNotFoundError:
                return None

    def _removed_beside(self, step: int) -> list[str]:
        files = [name for name, is_directory in self._files.names(self._step(step)).items() if not is_directory]
        return removed_beside(self, step, files)

    def _leads_to_directory(self, path: Path) -> bool:
        """Return whether the path is a symbolic link to a directory; raise StoreError if its target is absent.

        An unmounted checkpoint must not be skipped silently.
        """
        if not self._files.is_link(path):
            return False
        found = self._files.status(path)
        if found is None or not stat.S_ISDIR(found.st_mode):
            raise StoreError(
                f"{path} is a symbolic link that leads to no directory: bring back, or mount, what it leads to, or "
                "remove the link"
            )
        return True

    def _step(self, step: int) -> Path:
        return self.root / step_name(step)

    def _make_root(self) -> None:
        """Create the root and its parents, and flush their names."""
        if self._root_is_durable and self.root.is_dir():
            return
        missing = [path for path in (self.root, *self.root.parents) if not path.is_dir()]
        for path in reversed(missing):
            self._make(path)
            self._files.sync_directory(path.parent)
        # Another process may have created a parent a moment ago (the job, its run directory), so flush existing parents
        # as well. Stop at the file system's root; skip parents that this user may not open.
        root = self.root.resolve()
        device = root.stat().st_dev
        for path in root.parents:
            if path.stat().st_dev != device:
                break
            if path not in {each.parent for each in missing}:
                with contextlib.suppress(PermissionError):
                    self._files.sync_directory(path)
        self._root_is_durable = True

    def _make_attempt(self, path: Path) -> None:
        """Create the directories of a step and of an attempt; `commit` makes their names durable."""
        self._make(path.parent)
        try:
            self._make(path)
        except FileNotFoundError:  # another writer just discarded the step's only other attempt, and the step
            self._make(path.parent)
            self._make(path)

    def _make(self, path: Path) -> None:
        with contextlib.suppress(FileExistsError):
            self._files.make_directory(path)
        if self.root in path.parents and not self._files.is_directory(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))

    def _write(self, path: Path, content: Sequence[memoryview]) -> None:
        descriptor = self._files.create(path)
        try:
            begun = written = 0
            for piece in content:
                flat = piece.cast("B") if piece.nbytes else memoryview(b"")
                for start in range(0, len(flat), _WRITE_SIZE):
                    block = flat[start : start + _WRITE_SIZE]
                    self._files.write(descriptor, block)
                    written += len(block)
                    if written - begun >= _WRITE_SIZE:
                        self._files.begin_sync(descriptor, begun, written - begun)
                        begun = written
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)

    def _put(self, partial: Path, final: Path, step: int, manifest: bytes) -> None:
        """Link the partial manifest to its final name; fail if another manifest has that name."""
        try:
            self._files.link(partial, final)
        except FileExistsError as error:  # a host that does not see the lock was first, or NFS repeated our own request
            if self.read_manifest(step) != manifest:
                raise self._already_committed(step) from error
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            self._files.replace(partial, final)  # atomic; exclusive only among hosts that see the lock

    def _already_committed(self, step: int) -> AlreadyCommittedError:
        return AlreadyCommittedError(
            f"another process committed a checkpoint of the same step, {self.path(step)}: two runs share the "
            "directory; give each its own"
        )

    def _remove_directory(self, path: Path) -> None:
        """Remove our files in an attempt's directory, and the directory itself; in a step's, only the files."""
        if not self._files.is_directory(path):
            return
        for name, is_directory in sorted(self._files.names(path).items()):
            if not is_directory and name != MANIFEST_NAME and is_ours(name):
                self._files.unlink(path / name)
        if path.parent != self.root:
            self._remove_if_empty(path)

    def _remove_if_empty(self, path: Path) -> bool:
        try:
            self._files.rmdir(path)
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise
            return False
        return True
