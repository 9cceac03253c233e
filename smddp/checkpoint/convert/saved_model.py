"""Writes the trained model to the job's model directory, which SageMaker packs into model.tar.gz.

It has two files of the same weights on the CPU: ``model.safetensors``, which cannot run code when loaded, and
``model.pt``, a state dict for ``torch.load(..., weights_only=True)``. Neither has optimizer state: to continue
training, use a checkpoint.
"""

from __future__ import annotations

import copy
import errno
import logging
import os
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from smddp.checkpoint.format.plain_names import plain_state
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_UNSAFE = re.compile(r"GLOBAL (\S+)")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_weights(weights: Mapping[str, Any], directory: Path) -> None:
    """Write both files from a model's state dict, on any device, each durably and atomically, with plain names.

    Raise CheckpointError if they can't be written; earlier files are then unchanged. If safetensors cannot store an
    entry, only ``model.pt`` is written, and a warning names the entry.
    """
    weights = plain_state(weights)
    write_torch(weights, directory / "model.pt")
    safe = directory / "model.safetensors"
    if unfit := [name for name, value in weights.items() if not isinstance(value, torch.Tensor)]:
        safe.unlink(missing_ok=True)  # an earlier one would be another model than model.pt
        logger.warning("wrote no %s: %s is no tensor; model.pt has it all", safe, ", ".join(unfit))
    else:
        write_safetensors(weights, safe)


def write_torch(state: Any, path: Path) -> None:
    """Write tensors, numbers and texts in dicts, lists and tuples, for ``torch.load(..., weights_only=True)``.

    The write is durable and atomic. Raise CheckpointError if it fails, or if the state could not be loaded again.
    """
    seen: dict[tuple[object, ...], torch.Tensor] = {}

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            torch.save(_on_cpu(state, seen), file)
        try:
            torch.load(temporary, weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            found = _UNSAFE.search(str(error))
            raise CheckpointError(
                f"will not write {path}: it would hold {found[1] if found else 'something'}, which "
                "torch.load(..., weights_only=True) does not load; tensors, numbers, texts, dicts and lists it does"
            ) from error

    _write_whole(path, write)


def write_safetensors(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write weights of any device and strides to a safetensors file, durably and atomically.

    Of tied weights, the file has the first by name, and its metadata names the others, as
    ``safetensors.torch.load_model`` expects. Raise CheckpointError if it can't be written.
    """
    names: dict[tuple[object, ...], str] = {}
    metadata = {"format": "pt"}  # transformers requires it
    tensors = {}
    for name in sorted(weights):
        kept = names.setdefault(_view(weights[name]), name)
        if kept == name:
            tensors[name] = _own_memory(weights[name]).contiguous()
        else:
            metadata[name] = kept

    def write(temporary: Path) -> None:
        temporary.touch()
        mode = temporary.stat().st_mode  # from the umask; safetensors makes files readable for the owner only
        safetensors.torch.save_file(tensors, temporary, metadata)
        temporary.chmod(mode)

    _write_whole(path, write)


def _write_whole(path: Path, write: Callable[[Path], None]) -> None:
    # The order makes the file whole and durable: write, flush the file, rename it, flush the directory.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            flush(temporary)
            temporary.replace(path)
            flush(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        cause = _os_error(error)
        if cause is None:
            raise
        advice = "free some space there" if cause.errno in _FULL else "let this user write there, or write elsewhere"
        raise CheckpointError(
            f"could not write {path}: {os.strerror(cause.errno or 0)}; {advice}. What stood there is as it was"
        ) from error


def _os_error(error: BaseException) -> OSError | None:
    """Return the operating system's error inside an error of torch or safetensors; None if absent."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        if found := _OS_ERROR.search(str(cause)):
            return OSError(int(found[1]), os.strerror(int(found[1])))
        cause = cause.__context__
    return cause


def flush(path: Path) -> None:
    """Make the content of a file, or the entries of a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _view(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return a key that is equal for tensors that view the same memory in the same way."""
    if tensor.numel() == 0:
        return (id(tensor),)
    place = (tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset())
    return (*place, tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())


def _own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on the CPU, copied if its storage is larger: the whole storage would be written."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    return plain.clone() if plain.untyped_storage().nbytes() > plain.numel() * plain.element_size() else plain


def _on_cpu(value: Any, seen: dict[tuple[object, ...], torch.Tensor]) -> Any:
    """Return the state with its tensors on the CPU; tied tensors stay tied."""
    if isinstance(value, torch.Tensor):
        view = _view(value)
        if view not in seen:
            seen[view] = _own_memory(value)
        return seen[view]
    if isinstance(value, dict):
        copied = copy.copy(value)  # keeps the type, and a state dict's _metadata
        for key, each in value.items():
            copied[key] = _on_cpu(each, seen)
        return copied
    if type(value) in (list, tuple):
        return type(value)(_on_cpu(each, seen) for each in value)
    return value
