"""Read untrusted safetensors files: a model in one file, or in several with Hugging Face's index.

A file is mapped, and a tensor is read on first use. So each rank reads only its own piece of a tensor that is divided
among ranks.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import safetensors
import torch

from smddp.checkpoint.format.manifest import parse_json
from smddp.checkpoint.format.tensors import LARGEST_HEADER
from smddp.errors import CheckpointError

_LONGEST_NAME = 255
"""Bytes, in usual file systems."""
INDEX_SUFFIX = ".safetensors.index.json"
INDEX_NAME = f"model{INDEX_SUFFIX}"
"""The index of a model in several files. It names the file of each tensor."""


def read_safetensors_file(path: Path, origin: str) -> dict[str, torch.Tensor]:
    """Read a safetensors file onto the CPU, with the aliases of tied weights from its metadata.

    Raise CheckpointError if it is malformed.
    """
    tensors, aliases = _read(path, origin)
    return {**{alias: tensors[name] for alias, name in aliases.items()}, **tensors}


def read_indexed_files(path: Path, origin: str) -> dict[str, torch.Tensor]:
    """Read all files of an index onto the CPU, as `read_safetensors_file` does.

    Raise CheckpointError if one is missing or malformed, or if their tensors are not those of the index.
    """
    file_of = read_index(path, origin)
    weights: dict[str, torch.Tensor] = {}
    for name in sorted(set(file_of.values())):
        if not (path.parent / name).is_file():
            raise CheckpointError(f"{origin} names {name}, and there is no such file: copy it there, too")
        tensors, aliases = _read(path.parent / name, f"{name}, which {origin} names,")
        for tensor in tensors:
            if (listed := file_of.get(tensor)) != name:
                where = "does not list it" if listed is None else f"says that it is in {listed}"
                raise CheckpointError(f"{name} has {tensor[:100]}, and {origin} {where}")
        listed_here = {tensor for tensor, file in file_of.items() if file == name}
        if lacking := sorted(listed_here - tensors.keys() - aliases.keys()):
            raise CheckpointError(f"{origin} says that {lacking[0][:100]} is in {name}, which does not have it")
        own = {alias: tensors[kept] for alias, kept in aliases.items() if file_of.get(alias, name) == name}
        weights |= {**own, **tensors}
    return weights


def read_index(path: Path, origin: str) -> dict[str, str]:
    """Return the name of the file of each tensor, by an index. The files are beside the index.

    Raise CheckpointError if the index is malformed, or names a file elsewhere.
    """
    if path.stat().st_size > LARGEST_HEADER:
        raise CheckpointError(f"{origin} has more than {LARGEST_HEADER} bytes, and no index has")
    try:
        file_of = dict(parse_json(path.read_bytes())["weight_map"].items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{origin} is not an index of safetensors files: {error}") from error
    if not file_of:
        raise CheckpointError(f"{origin} is not an index of safetensors files: it names none")
    for name in file_of.values():
        is_name = type(name) is str and len(name.encode(errors="replace")) <= _LONGEST_NAME
        if not is_name or PurePosixPath(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{origin} names {str(name)[:100]!r}, which is no safetensors file in its directory")
    return file_of


def _read(path: Path, origin: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors of a file, and the tensor of each alias."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dict
            metadata = file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{origin} is not a safetensors file, or it is damaged: {error}") from error
    # As safetensors.torch.save_model writes it: {omitted name: saved name of the same tensor}, beside {"format": "pt"}.
    return tensors, {alias: name for alias, name in metadata.items() if name in tensors and alias != "format"}
