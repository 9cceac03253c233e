"""Where checkpoints lie: a directory, and the order of writes in it that no kill and no power loss can spoil.

It knows names, bytes and durability. What is in the files, which checkpoints are valid and which are kept are the
concern of others. Only rank 0 uses it; nobody assumes that other hosts see the same directory.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

import torch
import xxhash

from smddp.checkpoint.manifest import LARGEST_MANIFEST, MANIFEST_NAME, FileRecord, is_file_name
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)

PARTIAL_SUFFIX = ".smddp-partial"

_STEP_NAME = re.compile(r"step-(\d{12})", re.ASCII)
_READ_SIZE = 4 * 2**20  # bytes: read, then hashed while they are still in the cache


class DirectoryStore:
    """Checkpoints as directories ``step-000000001234`` in one directory.

    Every file is written under another name, flushed to the disk, and renamed; the manifest last, when all others
    are durable. Removing goes the other way: the manifest first. So at any moment a directory with a manifest has all
    its files. Files and directories with other names are not touched.
    """

    def __init__(self, root: Path) -> None:
        """Use this directory; it is made with the first checkpoint."""
        self.root = root

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step lies, or would lie."""
        return self.root / f"step-{step:012}"

    def steps(self) -> list[int]:
        """The steps that there are directories for, valid or not, oldest first."""
        try:
            matches = [_STEP_NAME.fullmatch(entry.name) for entry in self.root.iterdir() if entry.is_dir()]
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for match in matches if match)

    def create(self, step: int) -> None:
        """Make the directory of a step, without what an interrupted save may have left there."""
        self.remove(step)
        _make_directory(self.path(step))

    def write(self, step: int, name: str, pieces: Iterable[memoryview]) -> FileRecord:
        """Write one file durably, and say what was written. Its name is durable after `commit`."""
        digest, size = xxhash.xxh3_128(), 0
        final = self.path(step) / name
        partial = final.with_name(name + PARTIAL_SUFFIX)
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                size += piece.nbytes
            file.flush()
            os.fsync(file.fileno())
        partial.replace(final)
        return FileRecord(size=size, xxh3_128=digest.hexdigest())

    def commit(self, step: int, manifest: bytes) -> None:
        """Make the files of a step a checkpoint: from here on it is durable."""
        _sync_directory(self.path(step))
        self.write(step, MANIFEST_NAME, [memoryview(manifest)])
        _sync_directory(self.path(step))

    def read_manifest(self, step: int) -> bytes | None:
        """Give the manifest's bytes; None where there is none.

        Raises:
            CheckpointError: it is no file, or too large to be one of ours.
            OSError: it cannot be read.
        """
        path = self.path(step) / MANIFEST_NAME
        if not path.exists():
            return None
        if not path.is_file() or path.stat().st_size > LARGEST_MANIFEST:
            raise CheckpointError(f"{MANIFEST_NAME} is not a file of at most {LARGEST_MANIFEST} bytes")
        return path.read_bytes()

    def read(self, step: int, name: str, record: FileRecord) -> torch.Tensor:
        """Give the bytes of a file, a flat tensor of uint8, once they are known to be those that were written.

        Raises:
            CheckpointError: they are not. The message is only the reason.
            OSError: they cannot be read.
        """
        return _read_checked(self.path(step) / name, record, keep=True)

    def verify(self, step: int, name: str, record: FileRecord) -> None:
        """Raise what `read` would raise, in little memory."""
        _read_checked(self.path(step) / name, record, keep=False)

    def remove(self, step: int) -> None:
        """Remove what is ours of a step; from the first moment on it is no checkpoint any more."""
        directory = self.path(step)
        if not directory.exists():
            return
        (directory / MANIFEST_NAME).unlink(missing_ok=True)
        _sync_directory(directory)
        for path in sorted(directory.iterdir()):
            name = path.name.removesuffix(PARTIAL_SUFFIX)
            if name == MANIFEST_NAME or is_file_name(name):
                path.unlink()
        try:
            directory.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            logger.info("left %s in place: it holds files that are not a checkpoint's", directory)
        _sync_directory(self.root)


def _read_checked(path: Path, record: FileRecord, *, keep: bool) -> torch.Tensor:
    if not path.is_file():
        raise CheckpointError(f"{path.name} is missing")
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != record.size:
            raise CheckpointError(f"{path.name} has {size} bytes instead of {record.size}")
        content = torch.empty(size if keep else min(size, _READ_SIZE), dtype=torch.uint8)
        memory = content.numpy().data
        for start in range(0, size, _READ_SIZE):
            block = memory[start : start + _READ_SIZE] if keep else memory[: size - start]
            if file.readinto(block) != len(block):
                raise CheckpointError(f"{path.name} became shorter while it was read")
            digest.update(block)
    if digest.hexdigest() != record.xxh3_128:
        raise CheckpointError(f"{path.name} was changed: its bytes do not match their xxh3_128")
    return content


def _make_directory(path: Path) -> None:
    """Make a directory and those above it durably; a directory that others have files in may be there already."""
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir()
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
