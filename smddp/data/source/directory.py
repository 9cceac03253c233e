"""A directory as a source of data, and the choice of a source by its location."""

from __future__ import annotations

import builtins
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from smddp.data.source.source import Blob, Source, is_temporary, log_left_out
from smddp.errors import DataError


class DirectorySource:
    """The files of a directory, at any depth. Symbolic links are followed, except into a directory above."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Use this directory. `list` reads it."""
        self.root = Path(root).absolute()

    def __str__(self) -> str:
        """Return the directory."""
        return str(self.root)

    def list(self) -> list[Blob]:
        """Return all regular files, sorted by name."""
        if not self.root.is_dir():
            found = "is not a directory" if self.root.exists() else "does not exist"
            raise DataError(f"cannot read shards from {self.root}: it {found}; give the directory that holds them")
        left_out: list[str] = []
        try:
            blobs = list(self._files(self.root, "", (), left_out))
        except OSError as error:
            raise DataError(
                f"cannot list {error.filename or self.root}: {error.strerror}; make it readable, or take it away"
            ) from error
        log_left_out(left_out, self)
        return sorted(blobs, key=lambda blob: blob.name)

    def open(self, name: str, start: int = 0, size: int | None = None) -> BinaryIO:
        """Open a file. The stream is seekable."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise DataError(f"{name!r} is not a file below {self.root}: shards are named by their path in it")
        try:
            file = (self.root / name).open("rb", buffering=0)
        except OSError as error:
            raise DataError(f"cannot open {self.root / name}: {error.strerror}") from error
        return io.BufferedReader(_Section(file, start, size), 1 << 17)

    def _files(
        self, directory: Path, prefix: str, above: tuple[tuple[int, int], ...], left_out: builtins.list[str]
    ) -> Iterator[Blob]:
        """Yield the files below a directory, and add the temporary ones to `left_out`."""
        here = directory.stat()
        identity = (here.st_dev, here.st_ino)
        if identity in above:
            return
        with os.scandir(directory) as entries:
            for entry in entries:
                if is_temporary(entry.name):
                    left_out.append(prefix + entry.name)
                    continue
                found = entry.stat()
                if stat.S_ISDIR(found.st_mode):
                    yield from self._files(
                        directory / entry.name, f"{prefix}{entry.name}/", (*above, identity), left_out
                    )
                elif stat.S_ISREG(found.st_mode):
                    yield Blob(name=prefix + entry.name, size=found.st_size)


class _Section(io.RawIOBase):
    """A section of a file as its own file."""

    def __init__(self, file: io.FileIO, start: int, size: int | None) -> None:
        self._file = file
        self._start = start
        self._size = max(os.fstat(file.fileno()).st_size - start, 0) if size is None else size
        self._position = 0
        file.seek(start)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted = memoryview(buffer)[: max(self._size - self._position, 0)]
        count = self._file.readinto(wanted) if wanted.nbytes else 0
        self._position += count or 0
        return count or 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        self._file.seek(self._start + self._position)
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self._file.close()
        super().close()


def open_source(location: str | os.PathLike[str]) -> Source:
    """Return the source at a directory or ``s3://bucket/prefix``; raise DataError for anything else."""
    text = os.fspath(location)
    if text.startswith("s3://"):
        from smddp.data.source.s3 import S3Source  # here, because it needs boto3

        return S3Source(text)
    if text.startswith("s3:/") or "://" in text or not text:
        raise DataError(
            f"{text!r} is no place for shards: give a directory or, as a str and not as a Path, s3://bucket/prefix"
        )
    return DirectorySource(text)
