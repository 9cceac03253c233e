"""Writes the trained model to the job's model directory, which SageMaker packs into model.tar.gz.

``model.safetensors`` cannot run code when loaded. A model of more than `MOST_BYTES` is written in several files, as
Hugging Face does: ``model-00001-of-00002.safetensors`` and so on, with the file of each tensor in
``model.safetensors.index.json``. A model in one file is also written as ``model.pt``, a state dict for
``torch.load(..., weights_only=True)``. No file has optimizer state: to continue training, use a checkpoint.

Of a sharded model, no rank holds all weights:
  1. Rank 0 plans the files from names, shapes and dtypes.
  2. The ranks gather one tensor at a time. Rank 0 writes it and frees it.
  3. If rank 0 fails, it still takes part in the other gathers, in which the other ranks wait. Then all ranks fail.
  4. ``model.pt`` is written from the mapped ``model.safetensors``.

The files are written and flushed under other names, then moved. A reader finds the old model or the new one; while one
model in several files replaces another, it finds none.
"""

from __future__ import annotations

import copy
import errno
import json
import logging
import os
import pickle
import re
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from smddp.checkpoint.convert.safetensors_files import INDEX_NAME, read_safetensors_file
from smddp.checkpoint.convert.torch_files import UNSAFE
from smddp.checkpoint.format.plain_names import plain_state
from smddp.checkpoint.format.tensors import DTYPES, Layout, bytes_of
from smddp.distributed import Ranks
from smddp.dtensor import is_dtensor, local_values, whole_values
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)

MOST_BYTES = 5 * 10**9
"""Bytes of a file's tensors, unless one tensor alone has more; the default of Hugging Face's ``max_shard_size``."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ONE, _TORCH = "model.safetensors", "model.pt"
_ONE_OF_SEVERAL = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_ALONE = Ranks(rank=0, world_size=1)


def write_weights(weights: Mapping[str, Any], directory: Path, ranks: Ranks = _ALONE) -> None:
    """Write a model's state dict, on any device, durably and atomically, with plain names. Collective.

    Rank 0 writes. Another rank needs only the DTensors. If safetensors cannot store an entry, only ``model.pt`` is
    written, and a warning names the entry. Raise CheckpointError if the files can't be written.
    """
    weights = plain_state(weights)
    files = ranks.on_main(lambda: _plan(weights))
    names = [entry.name for file in files for entry in file.layout.entries]
    tensors = (whole_values(weights[name]) for name in names if name in weights)

    def write() -> None:
        try:
            if ranks.is_main:
                _write_model(weights, files, tensors, directory)
        except Exception:
            deque(tensors, maxlen=0)  # note 3
            raise
        deque(tensors, maxlen=0)

    ranks.agree(write)


def write_torch(state: Any, path: Path) -> None:
    """Write tensors, numbers and texts in dicts, lists and tuples, for ``torch.load(..., weights_only=True)``.

    The write is durable and atomic. Raise CheckpointError if it fails, or if the state could not be loaded again.
    """
    with _replacing(path.parent, [path.name]) as new:
        _save(state, new / path.name, path)


def write_safetensors(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write weights of any device and strides to a safetensors file, durably and atomically.

    Of tied weights, the file has the first by name, and its metadata names the others, as
    ``safetensors.torch.load_model`` expects. Raise CheckpointError if it can't be written.
    """
    if unfit := _unfit(weights):
        raise CheckpointError(f"cannot write {path} as safetensors: {', '.join(unfit.values())}")
    kept, aliases = _without_aliases(weights)
    with _replacing(path.parent, [path.name]) as new:
        layout = _layout(kept, aliases)
        _write_file(layout, (weights[entry.name] for entry in layout.entries), new / path.name, path)


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    layout: Layout


def _plan(weights: Mapping[str, Any]) -> list[_File]:
    """Return the safetensors files to write. None for a whole model with an entry that safetensors cannot store."""
    unfit = _unfit(weights)
    divided = [name for name, value in weights.items() if is_dtensor(value)]
    if unfit and not divided:
        return []
    if other := [why for name, why in unfit.items() if name in divided]:
        raise CheckpointError(f"cannot write {', '.join(other)}: its values are divided among the ranks")
    kept, aliases = _without_aliases({name: value for name, value in weights.items() if name not in unfit})
    groups: list[dict[str, torch.Tensor]] = []
    last: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in kept.items():
        if tensor.nbytes > MOST_BYTES:
            groups.append({name: tensor})
            continue
        if size + tensor.nbytes > MOST_BYTES:
            groups.append(last)
            last, size = {}, 0
        last[name] = tensor
        size += tensor.nbytes
    groups += [last] if last or not groups else []
    count = len(groups)
    names = [_ONE] if count == 1 else [f"model-{each:05}-of-{count:05}.safetensors" for each in range(1, count + 1)]
    return [_File(name, _layout(group, aliases)) for name, group in zip(names, groups, strict=True)]


def _unfit(weights: Mapping[str, Any]) -> dict[str, str]:
    """Return why safetensors cannot store an entry, by name."""
    unfit = {}
    for name, value in weights.items():
        if not isinstance(value, torch.Tensor):
            unfit[name] = f"{name} is no tensor"
        elif value.dtype not in DTYPES or value.layout != torch.strided:
            unfit[name] = f"{name} is {value.dtype}, {value.layout}"
    return unfit


def _without_aliases(weights: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the weights without tied ones but the first by name, and the name of that one for each other name."""
    names: dict[tuple[object, ...], str] = {}
    first = {name: names.setdefault(_view(weights[name]), name) for name in sorted(weights)}
    kept = {name: tensor for name, tensor in weights.items() if first[name] == name}
    return kept, {name: other for name, other in first.items() if name != other}


def _layout(tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str]) -> Layout:
    own = {name: kept for name, kept in aliases.items() if kept in tensors}
    return Layout.of(tensors, {"format": "pt", **own})  # transformers requires the format


def _write_model(
    weights: Mapping[str, Any], files: list[_File], tensors: Iterator[torch.Tensor], directory: Path
) -> None:
    unfit = _unfit(weights)
    several = len(files) > 1 and not unfit
    names = [*(file.name for file in files if not unfit), INDEX_NAME if several else _TORCH]
    with _replacing(directory, names, others=True) as new:
        for file in files:
            _write_file(file.layout, tensors, new / file.name, directory / file.name)
        if several:
            with _explained(directory / INDEX_NAME):
                (new / INDEX_NAME).write_text(_index(files))
        else:
            _save(_mapped(weights, [new / file.name for file in files]), new / _TORCH, directory / _TORCH)
    if unfit:
        logger.warning("wrote no %s: %s; model.pt has it all", directory / _ONE, ", ".join(unfit.values()))
    elif several:
        logger.info("wrote the model in %d files of safetensors, with an index and without model.pt", len(files))


def _index(files: list[_File]) -> str:
    entries = {entry.name: (file.name, entry.size) for file in files for entry in file.layout.entries}
    content = {
        "metadata": {"total_size": sum(size for _, size in entries.values())},
        "weight_map": {name: file for name, (file, _) in entries.items()},
    }
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def _mapped(weights: Mapping[str, Any], written: list[Path]) -> Mapping[str, Any]:
    """Return the weights with the values of DTensors mapped from the written files."""
    if not any(map(is_dtensor, weights.values())):
        return weights
    tensors = {name: value for path in written for name, value in read_safetensors_file(path, str(path)).items()}
    whole: Any = copy.copy(weights)  # keeps a state dict's _metadata
    whole.update({name: tensors[name] for name in weights if name in tensors})
    return whole  # type: ignore[no-any-return]


def _write_file(layout: Layout, tensors: Iterable[torch.Tensor], path: Path, final: Path) -> None:
    """Write one safetensors file of the next tensors."""
    with _explained(final), path.open("wb") as file:
        file.write(layout.header)
        for _, tensor in zip(layout.entries, tensors, strict=False):  # the next tensors are of the next file
            file.write(bytes_of(_on_the_cpu(tensor).contiguous()))


def _save(state: Any, path: Path, final: Path) -> None:
    """Write a file of ``torch.save``, and check that it can be loaded."""
    with _explained(final):
        with path.open("wb") as file:
            torch.save(_on_cpu(state, {}), file)
        try:
            torch.load(path, weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            found = UNSAFE.search(str(error))
            raise CheckpointError(
                f"will not write {final}: it would hold {found[1] if found else 'something'}, which "
                "torch.load(..., weights_only=True) does not load; tensors, numbers, texts, dicts and lists it does"
            ) from error


@contextmanager
def _replacing(directory: Path, names: list[str], *, others: bool = False) -> Iterator[Path]:
    """Yield a directory to write files in; at its end make them durable, and move those with the names.

    With ``others`` the files of an earlier model with other names are removed.
    """
    new = directory / f".{names[0]}.{os.getpid()}"
    with _explained(directory / names[0]):
        directory.mkdir(parents=True, exist_ok=True)
        try:
            new.mkdir(exist_ok=True)
            yield new
            for name in names:
                flush(new / name)
            if INDEX_NAME in names:  # an index never names files of two models, after a crash of the machine, too
                (directory / INDEX_NAME).unlink(missing_ok=True)
                flush(directory)
            for name in names:
                (new / name).replace(directory / name)
            for old in list(directory.iterdir()) if others else ():
                is_of_model = old.name in (_ONE, _TORCH, INDEX_NAME) or _ONE_OF_SEVERAL.fullmatch(old.name)
                if is_of_model and old.name not in names:
                    old.unlink()
            flush(directory)
        finally:
            shutil.rmtree(new, ignore_errors=True)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, RuntimeError) as error:
        cause = _os_error(error)
        if cause is None:
            raise
        advice = "free some space there" if cause.errno in _FULL else "let this user write there, or write elsewhere"
        raise CheckpointError(
            f"could not write {path}: {os.strerror(cause.errno or 0)}; {advice}. What stood there is as it was"
        ) from error


def _os_error(error: BaseException) -> OSError | None:
    """Return the operating system's error inside an error of torch; None if absent."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
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
    local = local_values(tensor)
    if local.numel() == 0:
        return (id(tensor),)
    place = (local.device, local.untyped_storage().data_ptr(), local.storage_offset())
    return (*place, tensor.dtype, tensor.shape, local.shape, local.stride(), local.is_conj(), local.is_neg())


def _on_the_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().cpu()


def _own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on the CPU, copied if its storage is larger: the whole storage would be written."""
    plain = _on_the_cpu(tensor)
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
