"""A bundle as a .tar.gz whose bytes depend only on the files' names, contents and executable bits.

So the same code has the same SHA-256, whoever sends it and when. zlib's version also affects the bytes: after an update
of zlib the same code is uploaded once more.
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
"""The modification time of all files: the start of 1980, the earliest that ZIP, and so a wheel, can hold."""
_FILE, _PROGRAM = 0o644, 0o755
_PIECE = 2**20
_LEVEL = 6
"""gzip's level; 9 takes twice as long and saves one per cent."""


def write_archive(files: Mapping[str, Path | bytes], target: BinaryIO) -> str:
    """Write an archive to an empty file open for reading and writing; return its SHA-256 in hexadecimal digits.

    `files` has the path or content of each file, by its name in the archive. Raise EstimatorError if a file can't be
    read, or the archive can't be written.
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
    """Add a file, or a directory if `file` is None."""
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
