"""Read a directory of torch.distributed.checkpoint (DCP) without running code from it.

The directory's ``.metadata`` is a pickle. torch's own loader unpickles it, so the writer of the file can run any code.
Here a restricted unpickler reads it: it accepts only the names that DCP writes, and maps them to plain records. The
values are in files beside it, each piece of a tensor a file of ``torch.save``, read by torch's restricted unpickler.
"""

from __future__ import annotations

import io
import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from smddp.checkpoint.convert.pickles import UNREADABLE, BoundedUnpickler
from smddp.checkpoint.convert.torch_files import check_proportion, read_torch_file
from smddp.errors import CheckpointError

METADATA_NAME = ".metadata"

_MOST_DIMENSIONS = 64
_MOST = 2**63  # torch counts in 64 bits


def read_dcp(directory: Path, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Any]:
    """Read a state of ``dcp.save`` onto the CPU, in this process alone; `wanted` selects top-level dicts by name.

    DCP converts dict keys to texts and omits empty dicts; an optimizer's parameter numbers are restored here. Raise
    CheckpointError if the directory is malformed or needs code to run.
    """
    try:
        metadata = _MetadataUnpickler((directory / METADATA_NAME).read_bytes()).load()
        pieces = _Pieces(directory, metadata.storage_data)
        paths = metadata.planner_data or {}
        state: dict[Any, Any] = {}
        for name, described in metadata.state_dict_metadata.items():
            path = paths.get(name, (name,))
            if len(path) == 1 or wanted(path[0]):
                _put(state, path, _read_value(name, described, pieces))
        check_proportion(state, pieces.size, str(directory))
        return {name: _with_numbers(_with_lists(value)) for name, value in state.items()}
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"cannot read {directory}: {error}") from error
    except UNREADABLE as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{directory} was not saved by DCP in a way that smddp can read, or it is damaged: "
            f"{type(error).__name__}: {error}"
        ) from error


class _Record:
    """Stands in for any of DCP's records, with the saved fields.

    `__setstate__` keeps a pickle from setting attributes by itself.
    """

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)


class _Index(_Record):
    """Stands in for DCP's ``MetadataIndex``, the key of the dict that locates each piece of a tensor."""

    fqn: str
    offset: Any = None

    def __hash__(self) -> int:
        return hash((self.fqn, self.offset))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Index) and (self.fqn, self.offset) == (other.fqn, other.offset)


class _Properties(_Record):
    """Stands in for a tensor's properties; only the dtype is kept."""

    def __setstate__(self, fields: Any) -> None:
        self.dtype = fields[0]


class _Ignored(_Record):
    """Stands in for records that do not affect the values."""

    def __init__(self, *_: object) -> None:
        pass


_METADATA, _FILESYSTEM = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
_KNOWN: dict[tuple[str, str], Any] = {
    (_METADATA, "Metadata"): _Record,
    (_METADATA, "StorageMeta"): _Record,
    (_METADATA, "TensorStorageMetadata"): _Record,
    (_METADATA, "BytesStorageMetadata"): _Record,
    (_METADATA, "ChunkStorageMetadata"): _Record,
    (_METADATA, "TensorProperties"): _Properties,
    (_METADATA, "MetadataIndex"): _Index,
    (_METADATA, "_MEM_FORMAT_ENCODING"): _Ignored,
    (_FILESYSTEM, "_StorageInfo"): _Record,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _Ignored,
    ("pathlib", "PosixPath"): _Ignored,
    ("pathlib._local", "PosixPath"): _Ignored,
    ("collections", "OrderedDict"): OrderedDict,
}


class _MetadataUnpickler(BoundedUnpickler):
    """Loads DCP's metadata, and rejects every name that DCP does not write."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the stand-in for a name."""
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(
                f"its {METADATA_NAME} names {module}.{name}, which could run code; DCP writes no such thing"
            )
        return _KNOWN[module, name]


class _Pieces:
    """The pieces of values in the files beside the metadata."""

    def __init__(self, directory: Path, storage_data: Mapping[Any, Any]) -> None:
        self.size = 0
        """Bytes read so far, at most the bytes of the files: no byte is read twice."""
        self._directory = directory
        self._pieces = {(index.fqn, _numbers(index.offset)): piece for index, piece in storage_data.items()}
        self._files: dict[str, int] = {}  # sizes of the files seen so far

    def check(self, name: str, start: tuple[int, ...], size: int) -> None:
        """Raise ValueError if the piece at `start` has fewer than `size` bytes. Call it before memory is allocated."""
        file, _, length = self._place(name, start)
        if length < size:
            raise ValueError(f"a piece of {name!r} needs {size} bytes, and has {length} in {file}")

    def read(self, name: str, start: tuple[int, ...] | None) -> Any:
        """Read the piece of a tensor at `start`; None for a value that is not a tensor."""
        file, offset, length = self._place(name, start)
        self.size += length
        if self.size > sum(self._files.values()):
            raise ValueError(f"the pieces add up to more bytes than the files {', '.join(self._files)}")
        with (self._directory / file).open("rb") as opened:
            opened.seek(offset)
            content = opened.read(length)
        return read_torch_file(io.BytesIO(content), f"{self._directory / file} from byte {offset} on")

    def _place(self, name: str, start: tuple[int, ...] | None) -> tuple[str, int, int]:
        """Return the file of a piece, its offset and its length."""
        piece = self._pieces[name, start]
        file, offset, length = piece.relative_path, piece.offset, piece.length
        if PurePosixPath(file).name != file or file == "..":
            raise ValueError(f"{file!r} is not a file in the directory")
        if getattr(piece, "transform_descriptors", None):
            raise ValueError(f"{file} is compressed, or transformed in another way")
        if file not in self._files:
            self._files[file] = (self._directory / file).stat().st_size
        if not (type(offset) is type(length) is int and offset >= 0 and 0 <= length <= self._files[file] - offset):
            raise ValueError(f"a piece of {name!r} is not within {file}, which has {self._files[file]} bytes")
        return file, offset, length


def _read_value(name: str, described: Any, pieces: _Pieces) -> Any:
    """Read a tensor from its pieces, or any other saved value."""
    if not hasattr(described, "chunks"):
        return pieces.read(name, None)
    shape, dtype = _numbers(described.size), described.properties.dtype
    places = {_numbers(chunk.offsets): _numbers(chunk.sizes) for chunk in described.chunks}
    if len(places) != len(described.chunks) or sum(map(math.prod, places.values())) != math.prod(shape):
        raise ValueError(f"the pieces of {name!r} do not make up a tensor of {list(shape)}")
    for start, sizes in places.items():
        pieces.check(name, start, math.prod(sizes) * dtype.itemsize)
    tensor: torch.Tensor | None = None
    written = torch.zeros(shape if len(places) > 1 else (0,), dtype=torch.bool)
    for start, sizes in places.items():
        piece = pieces.read(name, start)
        if not isinstance(piece, torch.Tensor) or tuple(piece.shape) != sizes or piece.dtype != dtype:
            raise ValueError(f"a piece of {name!r} is not the tensor that {METADATA_NAME} says")
        if not all(0 <= first <= end - size for first, size, end in zip(start, sizes, shape, strict=True)):
            raise ValueError(f"a piece of {name!r} is not within the tensor of {list(shape)}")
        if sizes == shape:
            return piece
        tensor = torch.empty(shape, dtype=dtype) if tensor is None else tensor
        place = tuple(slice(first, first + size) for first, size in zip(start, sizes, strict=True))
        tensor[place] = piece
        written[place] = True
    if not written.all():
        raise ValueError(f"the pieces of {name!r} overlap, and do not make up a tensor of {list(shape)}")
    return torch.empty(shape, dtype=dtype) if tensor is None else tensor


def _numbers(values: Any) -> Any:
    """Return a shape or offset as a verified tuple of integers."""
    if values is None:
        return None
    numbers = tuple(values)
    if len(numbers) > _MOST_DIMENSIONS or not all(type(each) is int and abs(each) < _MOST for each in numbers):
        raise ValueError(f"{str(numbers)[:100]} is no shape")
    return numbers


def _put(state: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    """Put a value at its path; lists are still dicts by index."""
    *above, last = path
    for key in above:
        state = state.setdefault(key, {})
    state[last] = value


def _with_lists(value: Any) -> Any:
    """Convert dicts by index to lists. Only these have integer keys: DCP converts the keys of real dicts to texts."""
    if type(value) is not dict:
        return value
    values = {key: _with_lists(each) for key, each in value.items()}
    return [values[index] for index in range(len(values))] if values and 0 in values else values


def _with_numbers(value: Any) -> Any:
    """Restore the integer keys of an optimizer's state, if its groups number the parameters."""
    groups = value.get("param_groups") if isinstance(value, dict) else None
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return value
    numbered = [number for group in groups for number in group.get("params", [])]
    if not all(type(number) is int for number in numbered):
        return value
    texts = {str(number): number for number in numbered}
    return {**value, "state": {texts.get(key, key): each for key, each in value.get("state", {}).items()}}
