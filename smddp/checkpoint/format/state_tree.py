"""Split nested state into tensors and a JSON skeleton, and rebuild it exactly.

A state_dict nests tensors, arrays, numbers and texts in dicts, lists and tuples. The tensors go to a safetensors file,
the rest to JSON. Types that JSON lacks become a JSON object with the key ``"$"``:

    {"$": "tensor", "name": N}      the tensor N of the file           {"$": "tuple", "items": [...]}
    {"$": "array", "name": N}       the same as a numpy array          {"$": "float", "value": "nan" | "inf" | "-inf"}
    {"$": "scalar", "name": N}      the same as a numpy scalar         {"$": "dict", "items": [[key, value], ...]}
    {"$": "ordered", "items": [[key, value], ...], "metadata": ...}    an OrderedDict, with a module's _metadata
    {"$": "counter", "items": [[key, value], ...]}                     a collections.Counter

Other types cannot be saved: they raise an error with their name, and are never pickled or left out. A caller may add
types with `MoreKinds`; each is saved as ``{"$": kind, "value": ...}``.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from smddp.checkpoint.format.tensors import DTYPES
from smddp.errors import CheckpointError
from smddp.job.saved_model import METADATA

_TAG = "$"
_DICTS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_KINDS = {kind: name for name, kind in _DICTS.items()}


class MoreKinds(Protocol):
    """Additional types of values, beside those of a state_dict."""

    def take_apart(self, value: object) -> tuple[str, Any] | None:
        """Return a value's kind and a representation that `flatten` supports; None for an unknown type."""

    def put_together(self, kind: str, value: Any) -> Any:
        """Return the value from its representation; raise CheckpointError for an unknown kind."""


def flatten(state: object, *, path: str, more: MoreKinds | None = None) -> tuple[Any, dict[str, torch.Tensor]]:
    """Split a state into a skeleton for json.dumps, and its tensors by name, not copied.

    A tensor's name is its path, ``state.0.exp_avg``; tied weights are listed once. Raise CheckpointError, which names
    the place below `path` (``optimizer``), for a value that cannot be saved.
    """
    parts = _Parts(more)
    return parts.skeleton(state, path, ""), parts.tensors


def unflatten(skeleton: Any, tensors: Mapping[str, torch.Tensor], more: MoreKinds | None = None) -> Any:
    """Rebuild a state from the result of `flatten`."""
    if isinstance(skeleton, list):
        return [unflatten(item, tensors, more) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    kind = skeleton.get(_TAG)
    if kind is None:
        return {key: unflatten(value, tensors, more) for key, value in skeleton.items()}
    if kind == "tensor":
        return tensors[skeleton["name"]]
    if kind == "array":
        return tensors[skeleton["name"]].numpy()
    if kind == "scalar":
        return tensors[skeleton["name"]].numpy()[()]
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

    def __init__(self, more: MoreKinds | None) -> None:
        self._more = more
        self.tensors: dict[str, torch.Tensor] = {}
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
        if isinstance(value, torch.Tensor):
            return {_TAG: "tensor", "name": self._add_tensor(value, path, name)}
        if isinstance(value, (np.ndarray, np.generic)):
            name = self._add(_tensor_of_array(value, path), path, name)
            return {_TAG: "array" if isinstance(value, np.ndarray) else "scalar", "name": name}
        if kind is list:
            return self._items(value, path, name)
        if kind is tuple:
            return {_TAG: "tuple", "items": self._items(value, path, name)}
        if kind in _KINDS:
            return self._dict(value, path, name)
        if self._more is not None and (apart := self._more.take_apart(value)) is not None:
            return {_TAG: apart[0], "value": self.skeleton(apart[1], path, name)}
        raise CheckpointError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, which safetensors and JSON cannot hold: tensors, "
            "numpy arrays, numbers, texts, None, and dicts, lists and tuples of them can be saved"
        )

    def _items(self, values: Iterable[Any], path: str, name: str) -> list[Any]:
        return [self.skeleton(value, f"{path}.{index}", _join(name, index)) for index, value in enumerate(values)]

    def _dict(self, value: dict[Any, Any], path: str, name: str) -> Any:
        items = {key: self.skeleton(each, f"{path}.{key}", _join(name, key)) for key, each in value.items()}
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

    def _add_tensor(self, tensor: torch.Tensor, path: str, name: str) -> str:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise CheckpointError(
                f"{path} is a {type(tensor).__qualname__} of layout {tensor.layout}: dense torch.Tensors and "
                "Parameters can be saved"
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
        if not name.isascii():
            name = name.encode(errors="replace").decode()  # safetensors has no lone surrogates
        name = name or "value"
        unique, number = name, 2
        while unique in self.tensors or unique == "__metadata__":  # reserved in safetensors
            unique, number = f"{name}#{number}", number + 1
        self.tensors[unique] = tensor
        return unique


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
