"""The weights in a SageMaker ``model.tar.gz``: one file of it, and nothing else of it is unpacked."""

from __future__ import annotations

import contextlib
import gzip
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from smddp.data.formats.byte_stream import ByteStream
from smddp.data.formats.tar_header import REFUSED, SPARSE
from smddp.data.formats.tar_members import Member, TarMembers
from smddp.errors import CheckpointError, DataError

WEIGHTS_NAMES = ("model.safetensors", "model.pt", "pytorch_model.bin", "model.pth")
"""What a directory or an archive with a model calls its weights; the first that is there is taken."""

_PIECE = 2**20  # bytes copied at a time


def extract_weights(archive: Path, origin: str, directory: Path) -> Path:
    """Copy the weights out of a model.tar.gz, whose end is read and verified first.

    Args:
        archive: where it is.
        origin: what to call it in errors.
        directory: where to put the file.

    Returns:
        The file.

    Raises:
        CheckpointError: it is no model.tar.gz, is damaged, or has no weights, or there is no room for them.
        OSError: it cannot be read.
    """
    with _members(archive, origin) as (stream, members):
        files: dict[str, Member] = {}
        while (member := members.next()) is not None:
            if member.header.kind == SPARSE or member.header.kind not in REFUSED:
                files[member.header.name.removeprefix("./")] = member
            members.skip(member)
    name = next((name for name in WEIGHTS_NAMES if name in files), None)
    if name is None:
        raise CheckpointError(
            f"{origin} has none of {', '.join(WEIGHTS_NAMES)}, only {', '.join(sorted(files)[:10]) or 'nothing'}"
        )
    found, free = files[name], shutil.disk_usage(directory).free
    if found.header.kind == SPARSE:
        raise CheckpointError(f"{name} in {origin} has holes, which no model has: pack it without --sparse")
    if found.header.size > free:
        raise CheckpointError(
            f"{name} in {origin} has {found.header.size} bytes, and {directory} has {free} free: set TMPDIR to a "
            "larger disk, or unpack it yourself"
        )
    extracted = directory / name
    with _members(archive, origin) as (stream, members), extracted.open("wb") as file:
        while (member := members.next()) is not None and member.offset != found.offset:
            members.skip(member)
        left = found.header.size
        while left and (piece := stream.read(min(left, _PIECE))):
            file.write(piece)
            left -= len(piece)
    return extracted


@contextlib.contextmanager
def _members(archive: Path, origin: str) -> Iterator[tuple[ByteStream, TarMembers]]:
    """Give the members of a compressed archive from its beginning on, and the stream of their data."""
    bad = f"{origin} is not a model.tar.gz, or it is damaged"

    def fail(offset: int, problem: str, cause: Exception | None) -> NoReturn:
        raise CheckpointError(f"{bad}: at byte {offset}, {problem}") from cause

    with archive.open("rb") as file:
        stream = ByteStream(cast(BinaryIO, gzip.GzipFile(fileobj=file)), name=origin)
        try:
            with contextlib.closing(stream):
                yield stream, TarMembers(stream, fail)
        except (EOFError, zlib.error) as error:
            raise CheckpointError(f"{bad}: {error}") from error
        except DataError as error:
            if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, gzip.BadGzipFile):
                raise error.__cause__ from error
            raise CheckpointError(f"{bad}: {error.__cause__}") from error
