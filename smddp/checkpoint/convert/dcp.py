"""Reading what torch.distributed.checkpoint (DCP) saved to a directory, without running what may be in it.

The directory's ``.metadata`` is a pickle, and torch loads it as one: whoever wrote it can run code there. Here a
restricted unpickler reads it, which knows the few names that DCP writes, and makes plain records of them. The values
lie in files beside it, each piece of a tensor as ``torch.save`` wrote it, and torch's restricted unpickler reads them.
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

from smddp.checkpoint.convert.torch_files import read_torch_file
from smddp.errors import CheckpointError

METADATA_NAME = ".metadata"

_Pieces = Mapping[tuple[str, tuple[int, ...] | None], Any]


def read_dcp(directory: Path, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Any]:
    """Read what was saved, in this process alone, onto the CPU.

    DCP makes texts of the keys of dicts and leaves empty dicts out. In an optimizer's state the numbers of the
    parameters are numbers again here.

    Args:
        directory: the one that ``dcp.save`` wrote.
        wanted: which entries of the state to read, where these are dicts themselves.

    Returns:
        The state as it was given to ``dcp.save``.

    Raises:
        CheckpointError: it was not saved by DCP, is damaged, or would have to run code.
        OSError: it cannot be read.
    """
    try:
        with (directory / METADATA_NAME).open("rb") as file:
            metadata = _MetadataUnpickler(file).load()
        pieces = {(index.fqn, _numbers(index.offset)): piece for index, piece in metadata.storage_data.items()}
        paths = metadata.planner_data or {}
        state: dict[Any, Any] = {}
        for name, described in metadata.state_dict_metadata.items():
            path = paths.get(name, (name,))
            if len(path) == 1 or wanted(path[0]):
                _put(state, path, _read_value(directory, name, described, pieces))
        return {name: _with_numbers(_with_lists(value)) for name, value in state.items()}
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"cannot read {directory}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, EOFError, RuntimeError, MemoryError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{directory} was not saved by DCP in a way that smddp can read, or it is damaged: "
            f"{type(error).__name__}: {error}"
        ) from error


class _Record:
    """Stands for any of DCP's records: has the fields that were saved.

    A pickle may set attributes of a class that it names, but not of one with a `__setstate__`.
    """

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)


class _Index(_Record):
    """Stands for the name of a piece, which is the key of a dict."""

    fqn: str
    offset: Any = None

    def __hash__(self) -> int:
        return hash((self.fqn, self.offset))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Index) and (self.fqn, self.offset) == (other.fqn, other.offset)


class _Properties(_Record):
    """Stands for the properties of a tensor, of which the dtype counts."""

    def __setstate__(self, fields: Any) -> None:
        self.dtype = fields[0]


class _Ignored(_Record):
    """Stands for what says nothing of the values."""

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


class _MetadataUnpickler(pickle.Unpickler):
    """Loads DCP's metadata, and refuses every name that DCP does not write there."""

    def find_class(self, module: str, name: str) -> Any:
        """Give what stands for a name."""
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(
                f"its {METADATA_NAME} names {module}.{name}, which could run code; DCP writes no such thing"
            )
        return _KNOWN[module, name]


def _read_value(directory: Path, name: str, described: Any, pieces: _Pieces) -> Any:
    """Read a tensor, from all its pieces, or whatever else was saved under a name."""
    if not hasattr(described, "chunks"):
        return _read_piece(directory, pieces[name, None])
    shape, dtype = _numbers(described.size), described.properties.dtype
    places = {_numbers(chunk.offsets): _numbers(chunk.sizes) for chunk in described.chunks}
    if len(places) != len(described.chunks) or sum(map(math.prod, places.values())) != math.prod(shape):
        raise ValueError(f"the pieces of {name!r} do not make up a tensor of {list(shape)}")
    tensor: torch.Tensor | None = None
    written = torch.zeros(shape if len(places) > 1 else (0,), dtype=torch.bool)
    for start, sizes in places.items():
        piece = _read_piece(directory, pieces[name, start])
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


def _read_piece(directory: Path, piece: Any) -> Any:
    name = piece.relative_path
    if PurePosixPath(name).name != name or name == "..":
        raise ValueError(f"{name!r} is not a file in the directory")
    if getattr(piece, "transform_descriptors", None):
        raise ValueError(f"{name} is compressed, or transformed in another way")
    with (directory / name).open("rb") as file:
        file.seek(piece.offset)
        content = file.read(piece.length)
    return read_torch_file(io.BytesIO(content), f"{directory / name} from byte {piece.offset} on")


def _numbers(values: Any) -> Any:
    return None if values is None else tuple(map(int, values))


def _put(state: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    """Put a value where it was; lists are dicts by index as yet."""
    *above, last = path
    for key in above:
        state = state.setdefault(key, {})
    state[last] = value


def _with_lists(value: Any) -> Any:
    """Make lists of the dicts by index. Others have no numbers as keys: DCP makes texts of them."""
    if type(value) is not dict:
        return value
    values = {key: _with_lists(each) for key, each in value.items()}
    return [values[index] for index in range(len(values))] if values and 0 in values else values


def _with_numbers(value: Any) -> Any:
    """Number the parameters in an optimizer's state again, where its groups number them."""
    groups = value.get("param_groups") if isinstance(value, dict) else None
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return value
    numbered = [number for group in groups for number in group.get("params", [])]
    if not all(type(number) is int for number in numbered):
        return value
    texts = {str(number): number for number in numbered}
    return {**value, "state": {texts.get(key, key): each for key, each in value.get("state", {}).items()}}
