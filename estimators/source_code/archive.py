"""A bundle as a .tar.gz whose bytes depend on nothing but the files' names, contents and whether they are programs.

So the same code has the same SHA-256, whenever and by whomever it is sent. zlib's own version decides over the bytes,
too: after an update of it the same code is uploaded once more.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from estimators.errors import EstimatorError

_TIME = 315_532_800
"""When all files were changed: 1980 began. ZIP, and so a wheel that is built of them, knows no earlier time."""
_FILE, _PROGRAM = 0o644, 0o755
_PIECE = 2**20
_LEVEL = 6
"""gzip's level; 9 takes twice as long and saves one per cent."""


def write_archive(files: Mapping[str, Path | bytes], target: BinaryIO) -> str:
    """Write an archive, and return its SHA-256, in hexadecimal digits.

    Args:
        files: Where each file lies, or what it holds; by its name in the archive.
        target: An empty file, open to write and to read.

    Raises:
        EstimatorError: A file can't be read, or the archive can't be written.
    """
    try:
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=0, compresslevel=_LEVEL) as packed,
            tarfile.open(fileobj=cast(BinaryIO, packed), mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in sorted({*files, *_directories(files)}):
                _add(archive, name, files.get(name))
    except OSError as fault:
        raise EstimatorError(f"source_dir, dependencies: the code can't be bundled: {fault}") from fault
    target.seek(0)
    digest = hashlib.sha256()
    while piece := target.read(_PIECE):
        digest.update(piece)
    target.seek(0)
    return digest.hexdigest()


def _directories(files: Mapping[str, object]) -> set[str]:
    return {str(path) for name in files for path in PurePosixPath(name).parents} - {"."}


def _add(archive: tarfile.TarFile, name: str, file: Path | bytes | None) -> None:
    """Add a file, or a directory if there is no file."""
    member = tarfile.TarInfo(name)
    member.mtime = _TIME
    if file is None:
        member.type, member.mode = tarfile.DIRTYPE, _PROGRAM
        archive.addfile(member)
    elif isinstance(file, bytes):
        member.size, member.mode = len(file), _FILE
        archive.addfile(member, io.BytesIO(file))
    else:
        status = file.stat()
        member.size, member.mode = status.st_size, _PROGRAM if status.st_mode & 0o111 else _FILE
        with file.open("rb") as content:
            archive.addfile(member, content)
