"""Export checkpoints to other formats: safetensors, torch.save, and torch.distributed.checkpoint (DCP)."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from smddp.checkpoint.convert.sources import find_source
from smddp.checkpoint.format.manifest import Manifest
from smddp.errors import CheckpointError
from smddp.job.saved_model import flush, plain_state, write_safetensors, write_torch, write_weights

Format = Literal["model", "safetensors", "torch", "dcp"]
FORMATS: tuple[Format, ...] = ("model", "safetensors", "torch", "dcp")

_BY_SUFFIX: dict[str, Format] = {
    "": "model",
    ".safetensors": "safetensors",
    ".pt": "torch",
    ".pth": "torch",
    ".bin": "torch",
    ".ckpt": "torch",
}


def export(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    format: Format | None = None,  # noqa: A002 - the usual name
    parts: Sequence[str] = ("model",),
) -> Manifest:
    """Export a checkpoint to a file or directory in another format. The checkpoint is verified while it is read.

    The destination appears only once it is complete and durable.

    Args:
        source: A checkpoint store (the newest valid checkpoint is read) or one checkpoint, each a directory or
            ``s3://…``.
        destination: A local file or directory that does not exist yet.
        format: ``model``: a directory with model.safetensors and model.pt, as `Trainer.save_model` writes it;
            ``safetensors`` or ``torch``: one file; ``dcp``: a directory for ``dcp.load``. Default: by the
            destination's suffix, and ``model`` without a suffix.
        parts: The parts to export. To ``safetensors`` and ``torch``, one part is written without its name; several
            parts, and any for ``dcp``, are written by name: ``{"model": …, "optimizer": …}``.

    Returns:
        The manifest of the checkpoint.

    Raises:
        CheckpointError: The checkpoint or part is absent, the format cannot hold it, or the destination exists or
            cannot be written.
        ValueError: The format is unknown, or the destination is a URI.
        OSError: The source cannot be read.
    """
    text = os.fspath(destination)
    if text.startswith("s3:/") or "://" in text:
        raise ValueError(f"{text!r} is no path: export to a file or a directory, and copy that there (aws s3 cp)")
    path = Path(text)
    chosen = _BY_SUFFIX.get(path.suffix.lower()) if format is None else format
    if chosen not in FORMATS:
        raise ValueError(f"no format is known for {str(destination)!r}: give one of {', '.join(FORMATS)}")
    found = find_source(source)
    if found.kind != "checkpoint":
        raise CheckpointError(f"{source} is no checkpoint, and only these are exported")
    if chosen in ("model", "safetensors") and len(parts) != 1:
        raise CheckpointError(f"{chosen!r} holds the weights of one part, not {', '.join(parts)}: use 'torch' or 'dcp'")
    if os.path.lexists(path):
        raise CheckpointError(f"{path} is there already: remove it, or give another destination")
    loaded = found.read_checkpoint(list(parts))
    state = {part: loaded.unflatten(part) for part in parts}
    first = state[parts[0]]
    if chosen == "model":
        weights = _as_weights(first, parts[0])
        _write_directory(path, lambda temporary: write_weights(weights, temporary))
    elif chosen == "safetensors":
        write_safetensors(_only_tensors(_as_weights(first, parts[0]), parts[0]), path)
    elif chosen == "torch":
        write_torch(first if len(parts) == 1 else state, path)
    else:
        for part, value in state.items():
            _check_keys(value, part)
        _write_directory(path, lambda temporary: _write_dcp(state, temporary))
    return loaded.manifest


def _as_weights(state: Any, part: str) -> Mapping[str, Any]:
    if isinstance(state, Mapping) and any(isinstance(value, torch.Tensor) for value in state.values()):
        return plain_state(state)
    raise CheckpointError(f"{part!r} is no model: it has no weights by name; use 'torch' or 'dcp'")


def _only_tensors(state: Mapping[str, Any], part: str) -> Mapping[str, torch.Tensor]:
    if others := [name for name, value in state.items() if not isinstance(value, torch.Tensor)]:
        raise CheckpointError(
            f"a safetensors file cannot hold {', '.join(others)} of {part!r}: no tensors; use 'torch' or 'dcp'"
        )
    return state


def _write_directory(path: Path, write: Callable[[Path], None]) -> None:
    """Write a directory under a temporary name, flush it, then rename it: it appears complete or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        flush(temporary)
        temporary.rename(path)
        flush(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"could not write {path}: {error}; free some space, or let this user write there"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_dcp(state: dict[str, Any], path: Path) -> None:
    """Save with DCP, in one process."""
    from torch.distributed.checkpoint.api import CheckpointException  # slow to import
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP warns about a single process, which is intended
        try:
            save(state, storage_writer=FileSystemWriter(path, sync_files=True), no_dist=True)
        except CheckpointException as error:
            raise OSError(f"DCP says: {error}") from error


def _check_keys(value: Any, where: str) -> None:
    """Refuse dict keys that DCP would silently convert to texts.

    An optimizer's parameter numbers are allowed: `read_dcp` restores them.
    """
    if isinstance(value, Mapping):
        for key, each in value.items():
            if type(key) is not str and not where.endswith("optimizer.state"):
                raise CheckpointError(f"DCP would make a text of the key {key!r} in {where}; use the format 'torch'")
            _check_keys(each, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            _check_keys(each, f"{where}.{index}")
