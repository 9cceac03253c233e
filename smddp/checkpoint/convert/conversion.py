"""Export checkpoints to other formats, and import a foreign state as a checkpoint that a run can resume from."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from smddp.checkpoint.checkpointer import Checkpointer
from smddp.checkpoint.convert.saved_model import flush, write_safetensors, write_torch, write_weights
from smddp.checkpoint.convert.sources import StateSource, find_source, has_names
from smddp.checkpoint.convert.torch_files import WEIGHTS_NAMES
from smddp.checkpoint.format.frozen import LeftOut
from smddp.checkpoint.format.manifest import Manifest, is_part_name
from smddp.checkpoint.format.plain_names import plain_state
from smddp.checkpoint.retention import Retention
from smddp.checkpoint.run_state import RANKS, RNG
from smddp.checkpoint.stores import open_store
from smddp.checkpoint.stores.opening import split
from smddp.display_text import counted
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)

_KEEP_ALL = Retention(last=10**12)

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
        format: ``model``: a directory with model.safetensors and model.pt, or above 5 GB several safetensors files
            with an index, as `Trainer.save_model` writes it; ``safetensors`` or ``torch``: one file; ``dcp``: a
            directory for ``dcp.load``. Default: by the destination's suffix, and ``model`` without a suffix.
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
    state = {part: _without_left_out(loaded.unflatten(part), part) for part in parts}
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


def _without_left_out(state: Any, part: str) -> Any:
    """Return a part without the frozen weights that the checkpoint leaves out; warn of them."""
    left_out = [name for name, value in state.items() if isinstance(value, LeftOut)] if isinstance(state, dict) else []
    for name in left_out:
        del state[name]
    if left_out:
        logger.warning(
            "the export of %s is without its %s, such as %s: the checkpoint leaves them out (save_frozen=False)",
            part,
            counted(len(left_out), "frozen weight"),
            left_out[0],
        )
    return state


def _as_weights(state: Any, part: str) -> Mapping[str, Any]:
    if has_names(state) and any(isinstance(value, torch.Tensor) for value in state.values()):
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


class _Part:
    """A part of an existing state, for saving only."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""
        return self._state

    def load_state_dict(self, state: Any, /) -> None:
        """Refuse to load."""
        raise NotImplementedError


def import_checkpoint(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], *, step: int = 0, epoch: int = 0
) -> list[str]:
    """Convert a foreign state to a checkpoint. Other checkpoints at the destination stay.

    The source is a model's state_dict, or a dict of state_dicts by part: ``{"model": …, "optimizer": …}``. The usual
    names ``model_state_dict``, ``state_dict``, ``optimizer_state_dict`` and so on are recognised. Numbers and texts
    beside the parts, such as an epoch, are left out with a warning. The source is not trusted: no code in it is run.

    Call it in one process, without a process group.

    Args:
        source: A file of torch.save or safetensors, a SageMaker ``model.tar.gz``, or one of these in S3; a directory
            with a model; or a directory of torch.distributed.checkpoint (DCP).
        destination: The store for checkpoints: a directory, or ``s3://bucket/prefix``.
        step: The optimizer steps taken.
        epoch: The current epoch.

    Returns:
        The names of the checkpoint's parts.

    Raises:
        CheckpointError: The source is absent, damaged, or not safe to read; or the checkpoint exists, or cannot be
            written.
        ValueError: The step, the epoch or the destination is invalid.
        OSError: The source cannot be read.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise CheckpointError("import a checkpoint in one process, before the process group is initialized")
    found = find_source(source)
    if found.kind == "checkpoint":
        raise _nothing_foreign(found)
    location, inside = split(destination)
    if inside is not None:
        raise CheckpointError(
            f"{destination} is the name of one checkpoint: give the location that it lies in, {location}, and its step "
            "apart"
        )
    parts, rest = found.read_foreign()
    rest += [name for name in parts if not is_part_name(name) or name in (RANKS, RNG)]
    state = {name: _Part(value) for name, value in parts.items() if name not in rest}
    if not state:
        raise CheckpointError(f"{source} has no part that a checkpoint could have, only {', '.join(rest)}")
    store = open_store(destination)
    if step in store.steps() and store.read_manifest(step) is not None:
        raise CheckpointError(f"there is a checkpoint {store.path(step)} already: remove it, or give another step")
    if rest:
        logger.warning("left out %s of %s: no part of a run's state", ", ".join(map(str, rest)), source)
    with Checkpointer(destination, state, keep=_KEEP_ALL) as checkpointer:
        checkpointer.save(step, epoch=epoch)
    return sorted(state)


def _nothing_foreign(source: StateSource) -> CheckpointError:
    """Return the error for a source that is a checkpoint store or empty."""
    if source.step is not None or next(open_store(source.location).newest_first(), None) is not None:
        return CheckpointError(f"{source} is a checkpoint already: copy its directory")
    return CheckpointError(
        f"{source} has nothing to import: a directory has one of {', '.join(WEIGHTS_NAMES)}, or what DCP saved"
    )
