"""Extract the weights file, and nothing else, from a SageMaker ``model.tar.gz``."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from smddp.errors import CheckpointError
from smddp.storage.tar_gz import BadArchiveError, reading_tar_gz
from smddp.storage.tar_header import SPARSE
from smddp.storage.tar_members import Member, TarMembers

WEIGHTS_NAMES = ("model.safetensors", "model.pt", "pytorch_model.bin", "model.pth")
"""The possible names of the weights in a model's directory or archive; the first that exists is used."""


def extract_weights(archive: Path, origin: str, directory: Path) -> Path:
    """Extract the weights of a model.tar.gz into `directory`, after verifying the whole archive, and return the file.

    Raise CheckpointError, which names `origin`, if the archive is malformed or has no weights, or the disk is too full.
    """
    with _members(archive, origin) as members:
        files: dict[str, Member] = {}
        while (member := members.next()) is not None:
            if member.header.is_file or member.header.kind == SPARSE:
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
    with _members(archive, origin) as members, extracted.open("wb") as file:
        while (member := members.next()) is not None and member.offset != found.offset:
            members.skip(member)
        file.writelines(members.pieces(found))
    return extracted


@contextlib.contextmanager
def _members(archive: Path, origin: str) -> Iterator[TarMembers]:
    """Yield the members of a compressed archive from its beginning."""
    try:
        with reading_tar_gz(archive, origin) as members:
            yield members
    except BadArchiveError as error:
        raise CheckpointError(f"{origin} is not a model.tar.gz, or it is damaged: {error}") from error
