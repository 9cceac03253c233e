"""Read untrusted weight files without running code from them.

``torch.save`` writes a pickle, and loading a pickle can run any code. So torch's restricted unpickler reads the file:
it supports tensors, numbers, texts and containers, and an error names anything else. Sizes and offsets that torch
trusts are verified first. From a SageMaker ``model.tar.gz`` only one file is extracted. A small file that expands to a
huge state is rejected: a few bytes of a pickle can describe a tensor of a terabyte (with strides of 0), or a list that
contains another list a million times, which takes no memory until it is copied or written.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from packaging.version import Version

from smddp.checkpoint.convert.pickles import UNREADABLE, check_torch_zip
from smddp.checkpoint.convert.safetensors_files import (
    INDEX_NAME,
    INDEX_SUFFIX,
    read_indexed_files,
    read_safetensors_file,
)
from smddp.display_text import shown_names
from smddp.errors import CheckpointError
from smddp.storage.untrusted_tar import SPARSE, BadArchiveError, Member, TarMembers, reading_tar_gz

_SAFE_IN_THE_OLD_FORMAT = Version("2.6")
"""Older versions run code from files in the pre-1.6 format, even with weights_only (CVE-2025-32434)."""

_ZIP = b"PK\x03\x04"
"""The first bytes of torch's present format. torch looks at no other bytes to recognise it."""

UNSAFE = re.compile(r"GLOBAL (\S+)")
"""The name of what a file would run, in torch's error message."""


def read_torch_file(file: Path | io.BytesIO, origin: str) -> Any:
    """Read a file of ``torch.save`` onto the CPU; from a path, tensors are mapped and read on first use.

    Raise CheckpointError, which names `origin`, if the file is of another format, damaged, or needs code to run.
    """
    beginning = _beginning(file, len(_ZIP))
    is_zip = beginning == _ZIP
    if not is_zip and not beginning.startswith(b"\x80"):
        raise CheckpointError(f"{origin} is not a file that torch.save wrote, or it is damaged")
    if not is_zip and Version(torch.__version__) < _SAFE_IN_THE_OLD_FORMAT:
        raise CheckpointError(
            f"{origin} is no file that torch.save wrote since torch 1.6, and torch {torch.__version__} cannot read "
            f"older ones safely; install torch {_SAFE_IN_THE_OLD_FORMAT} or newer"
        )
    if is_zip:
        with _opened(file) as opened:
            check_torch_zip(opened, origin)
    state = _load(file, origin, mmap=is_zip and isinstance(file, Path))
    check_proportion(state, _size(file), origin)
    return state


def _load(file: Path | io.BytesIO, origin: str, *, mmap: bool) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        if found := UNSAFE.search(str(error)):
            raise CheckpointError(
                f"{origin} holds {found[1]}, which smddp does not load: it could run code. If you trust the file, load "
                "it yourself with torch.load(..., weights_only=False), and save the state_dict() of what you need"
            ) from error
        raise CheckpointError(f"{origin} is not a file that torch.save wrote, or it is damaged") from error
    except UNREADABLE as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise CheckpointError(f"{origin} is not a file that torch.save wrote, or it is damaged: {reason}") from error


def read_weights_file(path: Path, origin: str) -> Any:
    """Read a torch or safetensors file, or the weights in a SageMaker ``model.tar.gz``, recognised by its first bytes.

    Raise CheckpointError, which names `origin`, if the file is of another format, damaged, or needs code to run.
    """
    if _beginning(path, 2) != b"\x1f\x8b" and not path.name.endswith((".tar.gz", ".tgz")):
        return _read_unpacked(path, origin)
    with tempfile.TemporaryDirectory(prefix="smddp-") as directory:
        extracted = _extract_weights(path, origin, Path(directory))
        return _read_unpacked(extracted, f"{extracted.name} in {origin}")


def _read_unpacked(path: Path, origin: str) -> Any:
    """Read a torch or safetensors file, or several by their index; never an archive, so archives do not nest."""
    if path.name.endswith(INDEX_SUFFIX):
        return read_indexed_files(path, origin)
    if path.suffix == ".safetensors" or _beginning(path, 9)[8:] == b"{":
        return read_safetensors_file(path, origin)
    return read_torch_file(path, origin)


def _beginning(file: Path | io.BytesIO, size: int) -> bytes:
    """Return the first bytes of a file."""
    with _opened(file) as opened:
        return opened.read(size)


def _size(file: Path | io.BytesIO) -> int:
    with _opened(file) as opened:
        return opened.seek(0, io.SEEK_END)


@contextlib.contextmanager
def _opened(file: Path | io.BytesIO) -> Iterator[BinaryIO]:
    """Open a path, or rewind a file in memory before and after use."""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            yield opened
        return
    file.seek(0)
    yield file
    file.seek(0)


WEIGHTS_NAMES = ("model.safetensors", INDEX_NAME, "model.pt", "pytorch_model.bin", "model.pth")
"""The possible names of the weights in a model's directory or archive; the first that exists is used."""


def _extract_weights(archive: Path, origin: str, directory: Path) -> Path:
    """Extract the weights of a model.tar.gz into `directory`, after verifying the whole archive.

    Return the file, or the index if there are several files.

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
            f"{origin} has none of {', '.join(WEIGHTS_NAMES)}, only {shown_names(sorted(files), most=10) or 'nothing'}"
        )
    wanted = {name: files[name]}
    if name == INDEX_NAME:
        wanted |= {each: found for each, found in files.items() if "/" not in each and each.endswith(".safetensors")}
    size, free = sum(found.header.size for found in wanted.values()), shutil.disk_usage(directory).free
    if holes := [each for each, found in wanted.items() if found.header.kind == SPARSE]:
        raise CheckpointError(f"{holes[0]} in {origin} has holes, which no model has: pack it without --sparse")
    if size > free:
        raise CheckpointError(
            f"{name} in {origin} has {size} bytes, and {directory} has {free} free: set TMPDIR to a larger disk, or "
            "unpack it yourself"
        )
    names = {found.offset: each for each, found in wanted.items()}
    with _members(archive, origin) as members:
        while names and (member := members.next()) is not None:
            if (each := names.pop(member.offset, None)) is None:
                members.skip(member)
                continue
            with (directory / each).open("wb") as file:
                file.writelines(members.pieces(member))
    return directory / name


@contextlib.contextmanager
def _members(archive: Path, origin: str) -> Iterator[TarMembers]:
    """Yield the members of a compressed archive from its beginning."""
    try:
        with reading_tar_gz(archive, origin) as members:
            yield members
    except BadArchiveError as error:
        raise CheckpointError(f"{origin} is not a model.tar.gz, or it is damaged: {error}") from error


_TIMES = 4
"""The state may have `_TIMES` the file's bytes, and `_MORE`: expanded masks and views of one weight are usual."""
_MORE = 2**30


def check_proportion(state: Any, size: int, origin: str) -> None:
    """Raise CheckpointError, naming `origin`, if a state is cyclic or much larger than its file of `size` bytes."""
    scale = _Scale()
    try:
        total = scale.weigh(state) + scale.tensors
    except RecursionError as error:
        raise CheckpointError(f"{origin} is nested too deep") from error
    if total > _TIMES * size + _MORE:
        raise CheckpointError(
            f"{origin} would take {total} bytes in memory, and it has {size}: its tensors are expanded, or it holds "
            "the same values many times; save it with contiguous tensors"
        )


class _Scale:
    """Adds up the bytes of a state when it is written."""

    def __init__(self) -> None:
        self.tensors = 0
        """Bytes of all tensors, each view counted once."""
        self._views: set[tuple[object, ...]] = set()
        self._known: dict[int, int | None] = {}  # None: in progress

    def weigh(self, value: Any) -> int:
        """Return the minimum bytes of a value, without its tensors; a container counts each time it occurs."""
        if isinstance(value, torch.Tensor):
            self._add(value)
            return 1
        if isinstance(value, (str, bytes, bytearray)):
            return 1 + len(value)
        if not isinstance(value, (Mapping, list, tuple, set, frozenset)):
            return 1
        if id(value) not in self._known:
            self._known[id(value)] = None
            items = [each for pair in value.items() for each in pair] if isinstance(value, Mapping) else value
            # A module's state_dict has its layers' versions in an attribute.
            self._known[id(value)] = 1 + sum(map(self.weigh, [*items, *getattr(value, "__dict__", {}).values()]))
        known = self._known[id(value)]
        if known is None:
            raise RecursionError("it holds itself")
        return known

    def _add(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided or tensor.is_meta:
            return
        view = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if view not in self._views:
            self._views.add(view)
            self.tensors += tensor.numel() * tensor.itemsize
