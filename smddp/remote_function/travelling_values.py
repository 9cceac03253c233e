"""Write and read values on their way to a job and back: a document, and the tensors beside it.

With safetensors and JSON, ``NAME.json`` contains ``{"value": ..., "tensors": SHA-256}``, and ``NAME.safetensors`` the
tensors. A value may contain what a checkpoint may, paths, and the dataclasses in the function's annotations; their
fields are restored without a call of ``__init__`` or ``__post_init__``. With cloudpickle there is ``NAME.pickle``.

The document vouches for the tensors by their digest; the reader must check the document itself first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePath
from typing import Any

import safetensors
import safetensors.torch
import torch

from smddp.checkpoint.format.manifest import parse_json
from smddp.checkpoint.format.state_tree import flatten, unflatten
from smddp.errors import CheckpointError, RemoteFunctionError
from smddp.remote_function.sent_call import Serializer

MOST_DOCUMENT_BYTES = 64 * 2**20
MOST_TENSOR_BYTES = 2 * 2**30
"""Bounds in bytes for writing and reading; cloudpickle's document counts as tensors."""

_DATACLASS = "dataclass "
_PATH = "path"


def write(
    value: Any, place: Path, *, serializer: Serializer, called: str, dataclasses: Mapping[str, type]
) -> tuple[bytes, list[Path]]:
    """Write a value, and return the document and all files.

    ``place`` is the path of the files without suffixes, in a directory that exists. ``called`` names the value in
    errors. Raise RemoteFunctionError if a part of it can't be written, or it is too large.
    """
    if serializer == "cloudpickle":
        document = _pickled(value, called)
        _check_size(called, len(document), MOST_TENSOR_BYTES)
        return document, [_written(place.with_suffix(".pickle"), document)]
    try:
        skeleton, tensors = flatten(value, path=called, more=_MoreKinds(dataclasses))
        _check_size(called, sum(each.numel() * each.itemsize for each in tensors.values()), MOST_TENSOR_BYTES)
        content = safetensors.torch.save({name: _own(each) for name, each in tensors.items()}) if tensors else None
        digest = None if content is None else hashlib.sha256(content).hexdigest()
        document = json.dumps({"value": skeleton, "tensors": digest}, separators=(",", ":")).encode()
    except CheckpointError as error:
        raise RemoteFunctionError(
            f"{error}; beside them paths, and the dataclasses that the function's annotations name. Give it as one of "
            "these, or use serializer='cloudpickle'"
        ) from error
    except RemoteFunctionError:
        raise
    except RecursionError as error:
        raise RemoteFunctionError(f"{called}: something in there is nested too deep, or contains itself") from error
    except (AttributeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise RemoteFunctionError(f"{called}: {error}") from error
    _check_size(called, len(document), MOST_DOCUMENT_BYTES)
    files = [_written(place.with_suffix(".json"), document)]
    if content is not None:
        files.append(_written(place.with_suffix(".safetensors"), content))
    return document, files


def read(
    place: Path, *, serializer: Serializer, check: Callable[[bytes], None], dataclasses: Mapping[str, type]
) -> Any:
    """Read a value from the files at ``place``, a path without suffixes.

    ``check`` raises if the document is not authentic; nothing of it is parsed before. ``serializer`` comes from the
    authentic request, too. Raise RemoteFunctionError if a file is missing, too large, or changed.
    """
    if serializer == "cloudpickle":
        import cloudpickle  # optional: serializer="cloudpickle" needs it

        document = _read(place.with_suffix(".pickle"), MOST_TENSOR_BYTES)
        check(document)
        return cloudpickle.loads(document)
    document = _read(place.with_suffix(".json"), MOST_DOCUMENT_BYTES)
    check(document)
    try:
        content = parse_json(document)
        tensors = {}
        if content["tensors"] is not None:
            file = place.with_suffix(".safetensors")
            data = _read(file, MOST_TENSOR_BYTES + MOST_DOCUMENT_BYTES)  # the file has a header, too
            if hashlib.sha256(data).hexdigest() != content["tensors"]:
                raise RemoteFunctionError(f"{file.name} is not the file that was written beside {file.stem}.json")
            tensors = safetensors.torch.load(data)
        return unflatten(content["value"], tensors, _MoreKinds(dataclasses))
    except RemoteFunctionError:
        raise
    except (CheckpointError, safetensors.SafetensorError) as error:
        raise RemoteFunctionError(f"{place.name} can't be put together: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RemoteFunctionError(f"{place.name} can't be put together: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class _MoreKinds:
    """Paths, and dataclasses by name, as further types of a value."""

    dataclasses: Mapping[str, type]

    def take_apart(self, value: object) -> tuple[str, Any] | None:
        kind = type(value)
        if isinstance(value, PurePath):
            return _PATH, str(value)
        name = next((name for name, each in self.dataclasses.items() if each is kind), None)
        if name is None:
            return None
        return _DATACLASS + name, {each.name: getattr(value, each.name) for each in fields(kind)}  # type: ignore[arg-type]

    def put_together(self, kind: str, value: Any) -> Any:
        if kind == _PATH:
            return Path(value)
        name = kind.removeprefix(_DATACLASS)
        known = self.dataclasses.get(name)
        if known is None or name == kind:
            raise CheckpointError(f"there is a {kind!r}, which no annotation of the function names")
        if value.keys() != {each.name for each in fields(known)}:
            raise CheckpointError(
                f"{name} was sent with the fields {', '.join(value)}, and has others here: the code has changed"
            )
        restored: Any = object.__new__(known)
        for field, each in value.items():
            object.__setattr__(restored, field, each)
        return restored


def _pickled(value: Any, called: str) -> bytes:
    try:
        import cloudpickle  # optional: serializer="cloudpickle" needs it
    except ModuleNotFoundError as error:
        raise RemoteFunctionError(
            "serializer='cloudpickle' needs cloudpickle: pip install 'smddp[cloudpickle]'"
        ) from error
    try:
        pickled: bytes = cloudpickle.dumps(value)
    except Exception as error:  # pickling a user's object may raise anything
        raise RemoteFunctionError(f"{called} can't be pickled: {error}") from error
    return pickled


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU that shares memory with no other tensor, as safetensors requires."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().clone(memory_format=torch.contiguous_format)


def _check_size(called: str, size: int, most: int) -> None:
    if size > most:
        raise RemoteFunctionError(
            f"{called}: {size:,} bytes, and at most {most:,} travel. Put what is large on S3: as a channel (inputs=), "
            "or into job.model_dir"
        )


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _read(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise RemoteFunctionError(f"{path.name} can't be read: {error.strerror}") from error
    if len(content) > most:
        raise RemoteFunctionError(f"{path.name} has more than {most:,} bytes, and was not read")
    return content
