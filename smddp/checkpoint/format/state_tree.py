"""Split nested state into tensors and a JSON skeleton, and rebuild it exactly.

A state_dict nests tensors, arrays, numbers and texts in dicts, lists and tuples. The tensors go to a safetensors file,
the rest to JSON. Types that JSON lacks become a JSON object with the key ``"$"``:

    {"$": "tensor", "name": N}      the tensor N of the file           {"$": "tuple", "items": [...]}
    {"$": "array", "name": N}       the same as a numpy array          {"$": "float", "value": "nan" | "inf" | "-inf"}
    {"$": "scalar", "name": N}      the same as a numpy scalar         {"$": "dict", "items": [[key, value], ...]}
    {"$": "ordered", "items": [[key, value], ...], "metadata": ...}    an OrderedDict, with a module's _metadata
    {"$": "counter", "items": [[key, value], ...]}                     a collections.Counter
    {"$": "sharded", "name": N, "dtype": D, "shape": [...], "pieces": [[M, [start, ...], [extent, ...]], ...]}
                                    the tensor N, whose pieces are the tensors M of the files
    {"$": "frozen", "dtype": D, "shape": [...], "fingerprint": F}      a weight that is not saved (`LeftOut`)

Other types cannot be saved: they raise an error with their name, and are never pickled or left out. A caller may add
types with `MoreKinds`; each is saved as ``{"$": kind, "value": ...}``.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch

from smddp.checkpoint.format.frozen import LeftOut
from smddp.checkpoint.format.plain_names import METADATA
from smddp.checkpoint.format.shards import Box, check_boxes, division_of
from smddp.checkpoint.format.tensors import DTYPES, check_shape
from smddp.display_text import with_article
from smddp.dtensor import is_dtensor, local_values
from smddp.errors import CheckpointError

_TAG = "$"
_DICTS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_KINDS = {kind: name for name, kind in _DICTS.items()}
_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


class MoreKinds(Protocol):
    """Additional types of values, beside those of a state_dict."""

    def take_apart(self, value: object) -> tuple[str, Any] | None:
        """Return a value's kind and a representation that `flatten` supports; None for an unknown type."""

    def put_together(self, kind: str, value: Any) -> Any:
        """Return the value from its representation; raise CheckpointError for an unknown kind."""


def flatten(
    state: object, *, path: str, name: str = "", more: MoreKinds | None = None
) -> tuple[Any, dict[str, torch.Tensor]]:
    """Split a state into a skeleton for json.dumps, and its tensors by name, not copied.

    A tensor's name is its path below `name`, ``state.0.exp_avg``; tied weights are listed once. Raise CheckpointError
    for a value that cannot be saved; its message gives the value's path, below `path` (``optimizer``).
    """
    parts = _Parts(more)
    return parts.skeleton(state, path, name), parts.tensors


def flatten_shards(state: object, *, path: str, rank: int) -> tuple[Any, dict[str, torch.Tensor], dict[str, int]]:
    """Split a state that may have DTensors, on one of the ranks; return the rank that saves each piece of them, too.

    Skeleton, names and sizes are the same on all ranks. A piece that another rank saves is a meta tensor here.
    """
    parts = _Parts(None, rank=rank)
    with torch.no_grad():  # else each look at a piece is a step of autograd, which takes ten times as long
        return parts.skeleton(state, path, ""), parts.tensors, parts.owners


@dataclass(frozen=True, slots=True)
class ShardedEntry:
    """A tensor whose pieces are in the files of a checkpoint."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: Mapping[str, Box]
    """The box of each piece, by its name in the files."""


def sharded_entries(skeleton: Any) -> Iterator[ShardedEntry]:
    """Yield the tensors of a skeleton that are in pieces. Raise CheckpointError for one that is malformed."""
    return (_sharded_entry(node) for node in _nodes(skeleton, "sharded"))


def has_left_out(skeleton: Any) -> bool:
    """Return whether a skeleton has a weight that is not saved."""
    return any(_nodes(skeleton, "frozen"))


def _nodes(skeleton: Any, kind: str) -> Iterator[Mapping[str, Any]]:
    """Yield the values of a kind, which are not looked into."""
    pending = [skeleton]
    while pending:
        value = pending.pop()
        if isinstance(value, dict) and value.get(_TAG) == kind:
            yield value
        elif isinstance(value, list | dict):
            pending.extend(value.values() if isinstance(value, dict) else value)


def _sharded_entry(node: Mapping[str, Any]) -> ShardedEntry:
    try:
        name, dtype, shape = node["name"], _DTYPES[node["dtype"]], node["shape"]
        pieces = {piece: Box(tuple(start), tuple(extents)) for piece, start, extents in node["pieces"]}
        boxes = list(pieces.values())
        for each in (shape, *(list(box.start) for box in boxes), *(list(box.shape) for box in boxes)):
            check_shape(each, dtype)
            if len(each) != len(shape):
                raise ValueError(str(each))
        if type(name) is not str:
            raise TypeError(str(name))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the pieces of a tensor are not what they should be: {str(error)[:100]}") from error
    check_boxes(name, shape, boxes)
    return ShardedEntry(name, dtype, tuple(shape), pieces)


def unflatten(skeleton: Any, tensors: Mapping[str, Any], more: MoreKinds | None = None) -> Any:
    """Rebuild a state from the result of `flatten`. `tensors` may have other values under the tensors' names."""
    if isinstance(skeleton, list):
        return [unflatten(item, tensors, more) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    kind = skeleton.get(_TAG)
    if kind is None:
        return {key: unflatten(value, tensors, more) for key, value in skeleton.items()}
    if kind in ("tensor", "sharded"):
        return tensors[skeleton["name"]]
    if kind == "array":
        return tensors[skeleton["name"]].numpy()
    if kind == "scalar":
        return tensors[skeleton["name"]].numpy()[()]
    if kind == "frozen":
        return LeftOut.from_json(skeleton)
    if kind == "float":
        return float(skeleton["value"])
    if kind == "tuple":
        return tuple(unflatten(item, tensors, more) for item in skeleton["items"])
    if kind not in _DICTS and more is not None:
        return more.put_together(kind, unflatten(skeleton["value"], tensors, more))
    if kind not in _DICTS:
        raise CheckpointError(f"the state holds a {kind!r}, which this smddp does not know; install a newer one")
    pairs = {unflatten(key, tensors, more): unflatten(value, tensors, more) for key, value in skeleton["items"]}
    result = _DICTS[kind](pairs)
    if "metadata" in skeleton:
        setattr(result, METADATA, unflatten(skeleton["metadata"], tensors, more))
    return result


class _Parts:
    """Collects tensors and their names."""

    def __init__(self, more: MoreKinds | None, *, rank: int | None = None) -> None:
        self._more = more
        self._rank = rank
        self.tensors: dict[str, torch.Tensor] = {}
        self.owners: dict[str, int] = {}
        """The rank that saves each piece of a DTensor, by the piece's name."""
        self._in_pieces: set[str] = set()
        self._at: dict[int, list[str]] = {}  # names by address

    def skeleton(self, value: Any, path: str, name: str) -> Any:
        """Return the JSON for a value; ``path`` is for messages, ``name`` for the tensor file."""
        kind = type(value)
        if kind is torch.Tensor:  # first, for speed: the training loop waits for this
            return {_TAG: "tensor", "name": self._add_tensor(value, path, name)}
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}
        if is_dtensor(value) and self._rank is not None:
            return self._sharded(value, path, name)
        if isinstance(value, torch.Tensor):
            return {_TAG: "tensor", "name": self._add_tensor(value, path, name)}
        if isinstance(value, (np.ndarray, np.generic)):
            name = self._add(_tensor_of_array(value, path), path, name)
            return {_TAG: "array" if isinstance(value, np.ndarray) else "scalar", "name": name}
        if kind is list:
            return self._items(value, path, name)
        if kind is tuple:
            return {_TAG: "tuple", "items": self._items(value, path, name)}
        if kind is LeftOut:
            return {_TAG: "frozen", **value.to_json()}
        if kind in _KINDS:
            return self._dict(value, path, name)
        if self._more is not None and (apart := self._more.take_apart(value)) is not None:
            return {_TAG: apart[0], "value": self.skeleton(apart[1], path, name)}
        found = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        raise CheckpointError(
            f"{path} is {with_article(found)}, which safetensors and JSON cannot hold: tensors, numpy arrays, numbers, "
            "texts, None, and dicts, lists and tuples of them can be saved"
        )

    def _items(self, values: Iterable[Any], path: str, name: str) -> list[Any]:
        return [self.skeleton(value, _join(path, index), _join(name, index)) for index, value in enumerate(values)]

    def _dict(self, value: dict[Any, Any], path: str, name: str) -> Any:
        items = {key: self.skeleton(each, _join(path, key), _join(name, key)) for key, each in value.items()}
        if type(value) is dict and _TAG not in items and all(type(key) is str for key in items):
            return items
        keys = [self.skeleton(key, f"{path}, the key {key!r}", _join(name, "key")) for key in items]
        tagged: dict[str, Any] = {
            _TAG: _KINDS[type(value)],
            "items": [list(pair) for pair in zip(keys, items.values(), strict=True)],
        }
        if hasattr(value, METADATA):
            metadata = getattr(value, METADATA)
            tagged["metadata"] = self.skeleton(metadata, f"{path}.{METADATA}", _join(name, "metadata"))
        return tagged

    def _sharded(self, tensor: torch.Tensor, path: str, name: str) -> Any:
        """Add the pieces of a DTensor. Tied ones are saved twice: a rank without values can't tell that they are."""
        division = division_of(tensor)
        if division.why_unsupported is not None:
            raise CheckpointError(f"{path} is {division.why_unsupported}")
        name, turn = self._unused(name), len(self._in_pieces)
        self._in_pieces.add(name)
        values, pieces = local_values(tensor), []
        for number, piece in enumerate(division.pieces):
            owner = piece.ranks[(turn + number) % len(piece.ranks)]  # in turn, so that all save about as much
            is_own = owner == self._rank
            if is_own and piece.box != division.own:
                raise CheckpointError(f"{path} is divided among ranks that do not save together: gather it first")
            content = values if is_own else _elsewhere(piece.box.shape, tensor.dtype)
            key = self._add(content, path, f"{name}@{number}")
            self.owners[key] = owner
            pieces.append([key, list(piece.box.start), list(piece.box.shape)])
        whole = {"name": name, "dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape)}
        return {_TAG: "sharded", **whole, "pieces": pieces}

    def _add_tensor(self, tensor: torch.Tensor, path: str, name: str) -> str:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise CheckpointError(
                f"{path} is {with_article(type(tensor).__qualname__)} of layout {tensor.layout}: dense torch.Tensors "
                "and Parameters can be saved"
            )
        if tensor.is_meta or tensor.is_quantized:
            raise CheckpointError(f"{path} is a meta or quantized tensor: it has no plain values to save")
        # Tensors with the same memory and view share one name; other views are saved separately.
        address = tensor.data_ptr()
        there = self._at.setdefault(address, [])
        if there and address:  # 0: a tensor without memory
            view = _view(tensor)
            for known in there:
                if _view(self.tensors[known]) == view:
                    return known
        there.append(self._add(tensor.detach() if tensor.requires_grad else tensor, path, name))
        return there[-1]

    def _add(self, tensor: torch.Tensor, path: str, name: str) -> str:
        if tensor.dtype not in DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise CheckpointError(f"{path} is of {tensor.dtype}; a checkpoint can hold {known}")
        unused = self._unused(name)
        self.tensors[unused] = tensor
        return unused

    def _unused(self, name: str) -> str:
        if not name.isascii():
            name = name.encode(errors="replace").decode()  # safetensors has no lone surrogates
        name = name or "value"
        unused, number = name, 2
        while unused in self.tensors or unused in self._in_pieces or unused == "__metadata__":  # safetensors' own
            unused, number = f"{name}#{number}", number + 1
        return unused


@lru_cache(maxsize=8192)
def _elsewhere(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor that only stands for a piece of another rank."""
    return torch.empty(shape, dtype=dtype, device="meta")


def _view(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return a key that distinguishes two tensors at the same address."""
    return tensor.device, tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()


def _tensor_of_array(value: np.ndarray[Any, Any] | np.generic, path: str) -> torch.Tensor:
    try:
        return torch.from_numpy(np.array(value, order="C"))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is a numpy array of {value.dtype}: booleans, integers, floats of up to 64 bits and complex64 "
            "in the machine's byte order can be saved"
        ) from error


def _join(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)
