"""Files of weights that others wrote, read without running what may be in them.

``torch.save`` writes a pickle, and a pickle can run any code when it is loaded. Here torch's restricted unpickler reads
it, which knows tensors, numbers, texts and containers; what needs more is refused by name. What torch would believe of
sizes and places is seen to be so first. A SageMaker ``model.tar.gz`` is never unpacked: one file of it is read.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import torch
from packaging.version import Version

from smddp.checkpoint.convert.archives import extract_weights
from smddp.checkpoint.convert.pickles import UNREADABLE
from smddp.checkpoint.convert.proportion import check_proportion
from smddp.checkpoint.convert.torch_zip import check_torch_zip
from smddp.errors import CheckpointError

_SAFE_IN_THE_OLD_FORMAT = Version("2.6")
"""Before it, torch ran code from files in its format of before 1.6 even with weights_only (CVE-2025-32434)."""

_ZIP = b"PK\x03\x04"
"""How a file begins that torch takes for one of its present format; what follows, or the file's end, does not count."""

_UNSAFE = re.compile(r"GLOBAL (\S+)")  # in what torch says of it


def read_torch_file(file: Path | io.BytesIO, origin: str) -> Any:
    """Read what ``torch.save`` wrote, onto the CPU. The tensors of a path stay in the file until they are used.

    Args:
        file: Where it is.
        origin: What to call it in errors.

    Raises:
        CheckpointError: It is no such file, is damaged, or would have to run code.
        OSError: It cannot be read.
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
        if found := _UNSAFE.search(str(error)):
            raise CheckpointError(
                f"{origin} holds {found[1]}, which smddp does not load: it could run code. If you trust the file, load "
                "it yourself with torch.load(..., weights_only=False), and save the state_dict() of what you need"
            ) from error
        raise CheckpointError(f"{origin} is not a file that torch.save wrote, or it is damaged") from error
    except UNREADABLE as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise CheckpointError(f"{origin} is not a file that torch.save wrote, or it is damaged: {reason}") from error


def read_safetensors_file(path: Path, origin: str) -> dict[str, torch.Tensor]:
    """Read a safetensors file, onto the CPU, with the names of tied weights that its metadata may tell.

    Raises:
        CheckpointError: It is no such file, or damaged.
        OSError: It cannot be read.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            metadata = file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{origin} is not a safetensors file, or it is damaged: {error}") from error
    # As safetensors.torch.save_model tells it: {the name left out: the name of the same tensor}.
    return {**{alias: tensors[name] for alias, name in metadata.items() if name in tensors}, **tensors}


def read_weights_file(path: Path, origin: str) -> Any:
    """Read a file of either kind, or the weights in a SageMaker ``model.tar.gz``; what it is, its first bytes say.

    Args:
        path: Where it is.
        origin: What to call it in errors.

    Raises:
        CheckpointError: It is none of them, is damaged, or would have to run code.
        OSError: It cannot be read.
    """
    if _beginning(path, 2) != b"\x1f\x8b" and not path.name.endswith((".tar.gz", ".tgz")):
        return _read_unpacked(path, origin)
    with tempfile.TemporaryDirectory(prefix="smddp-") as directory:
        extracted = extract_weights(path, origin, Path(directory))
        return _read_unpacked(extracted, f"{extracted.name} in {origin}")


def _read_unpacked(path: Path, origin: str) -> Any:
    """Read a file that is taken for no archive, however it begins: there is none within an archive."""
    if path.suffix == ".safetensors" or _beginning(path, 9)[8:] == b"{":
        return read_safetensors_file(path, origin)
    return read_torch_file(path, origin)


def _beginning(file: Path | io.BytesIO, size: int) -> bytes:
    """Return the first bytes, which say what a file is."""
    with _opened(file) as opened:
        return opened.read(size)


def _size(file: Path | io.BytesIO) -> int:
    with _opened(file) as opened:
        return opened.seek(0, io.SEEK_END)


@contextlib.contextmanager
def _opened(file: Path | io.BytesIO) -> Iterator[BinaryIO]:
    """Return a file from its beginning on; what is in memory is there again afterwards."""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            yield opened
        return
    file.seek(0)
    yield file
    file.seek(0)
