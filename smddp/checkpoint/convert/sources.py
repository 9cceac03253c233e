"""Resolve a path or URI to a source of state: a checkpoint, a weights file, or a directory of DCP."""

from __future__ import annotations

import logging
import mmap
import os
import posixpath
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import torch

from smddp.checkpoint.convert.dcp import METADATA_NAME, read_dcp
from smddp.checkpoint.convert.safetensors_files import INDEX_SUFFIX, read_index
from smddp.checkpoint.convert.torch_files import WEIGHTS_NAMES, read_weights_file
from smddp.checkpoint.format.manifest import Manifest
from smddp.checkpoint.restore.reader import NO_TARGETS, FindTargets, Loaded, load_parts, read_checkpoint, read_newest
from smddp.checkpoint.restore.restoring import read_on_all
from smddp.checkpoint.stores import open_store
from smddp.checkpoint.stores.opening import location_and_step, no_checkpoint_in
from smddp.display_text import shown_names
from smddp.distributed import Ranks
from smddp.errors import CheckpointError

if TYPE_CHECKING:
    from smddp.storage.s3_bucket import S3Bucket

logger = logging.getLogger(__name__)

_FILE_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar.gz", INDEX_SUFFIX)
"""A URI with one of these suffixes is an object, since S3 has no directories to tell apart. Local files are told by
their content, and a model's files in a directory by `WEIGHTS_NAMES`."""


@dataclass(kw_only=True, slots=True, frozen=True)
class StateSource:
    """A checkpoint, file, S3 object or DCP directory to read state from."""

    kind: Literal["checkpoint", "file", "object", "dcp"]
    location: str
    """The path or URI; for a checkpoint, the location of its store."""
    step: int | None = None
    """The step of a checkpoint; None for the newest valid one."""

    def __str__(self) -> str:
        return self.location if self.step is None else open_store(self.location).path(self.step)

    def read_part(self, part: str, find_targets: FindTargets | None = None) -> tuple[Mapping[str, Any], str]:
        """Read one part, and the location it came from, for messages; other parts of a checkpoint or DCP are not read.

        With ``find_targets`` all ranks read a checkpoint together, each its own pieces of the targets. Raise
        CheckpointError if the part is absent or has no weights by name, or the source is damaged.
        """
        if self.kind == "checkpoint":
            loaded = self.read_checkpoint([part], {} if find_targets is None else {part: find_targets})
            state, origin = loaded.unflatten(part), open_store(self.location).path(loaded.manifest.step)
        else:
            parts, _ = _parts_of(self._read_foreign(part), str(self), part)
            if part not in parts:
                raise CheckpointError(f"{self} has no {part!r}, only {', '.join(sorted(parts))}")
            state, origin = parts[part], str(self)
        if not has_names(state):
            raise CheckpointError(f"{part!r} of {origin} is no model: it has no weights by name; give another part")
        return state, origin

    def read_foreign(self) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
        """Read all parts of a foreign state, and the names of values that are not parts."""
        assert self.kind != "checkpoint"
        return _parts_of(self._read_foreign(None), str(self))

    def read_checkpoint(self, parts: list[str], targets: Mapping[str, FindTargets] = NO_TARGETS) -> Loaded:
        """Read and verify some parts of a checkpoint; raise CheckpointError if one is absent or damaged.

        With ``targets`` it is collective: all ranks read the same checkpoint.
        """
        assert self.kind == "checkpoint"
        store = open_store(self.location)

        def read(load: Callable[[Manifest], Loaded]) -> Loaded | None:
            return read_newest(store, load=load) if self.step is None else read_checkpoint(store, self.step, load=load)

        load, ranks = partial(load_parts, store, parts=parts, targets=targets), Ranks.current()
        loaded = read_on_all(ranks, read, load) if targets and ranks.world_size > 1 else read(load)
        if loaded is None:
            raise no_checkpoint_in(store)
        if missing := sorted(set(parts) - set(loaded.skeletons)):
            raise CheckpointError(
                f"{store.path(loaded.manifest.step)} has no {', '.join(missing)}, only "
                f"{', '.join(sorted(loaded.skeletons))}"
            )
        return loaded

    def _read_foreign(self, part: str | None) -> Any:
        if self.kind == "dcp":
            return read_dcp(Path(self.location), lambda name: part is None or _is_name_of(name, part))
        if self.kind == "file":
            return read_weights_file(Path(self.location), self.location)
        with tempfile.TemporaryDirectory(prefix="smddp-") as directory:
            path = Path(directory) / posixpath.basename(self.location)
            _download(self.location, path)
            if self.location.endswith(INDEX_SUFFIX):
                for name in sorted(set(read_index(path, self.location).values())):
                    _download(posixpath.join(posixpath.dirname(self.location), name), path.with_name(name))
            return read_weights_file(path, self.location)


def find_source(location: str | os.PathLike[str]) -> StateSource:
    """Resolve a location, in this order; raise CheckpointError if nothing is there.

    1. ``s3://`` with a weights file's suffix: an object.
    2. A checkpoint's name, or an ``s3://`` prefix with checkpoints: a checkpoint. An ``s3://`` prefix without
       checkpoints, but with a model: that object.
    3. A local file: a torch or safetensors file, or a SageMaker ``model.tar.gz``.
    4. A local directory: DCP's, if it has ``.metadata``; else checkpoints, if any; else a model's weights.
    """
    text = os.fspath(location)
    if text.startswith("s3://") and text.endswith(_FILE_SUFFIXES):
        return StateSource(kind="object", location=text)
    location, step = location_and_step(text)
    if step is None and text.startswith("s3://") and next(open_store(text).newest_first(), None) is None:
        for name in WEIGHTS_NAMES:
            if _is_object(uri := f"{text.rstrip('/')}/{name}"):
                return StateSource(kind="object", location=uri)
    if step is not None or text.startswith("s3://"):
        return StateSource(kind="checkpoint", location=location, step=step)
    path = Path(text)
    if not path.exists():
        raise CheckpointError(f"there is nothing at {text}")
    if not path.is_dir():
        return StateSource(kind="file", location=text)
    if (path / METADATA_NAME).is_file():
        return StateSource(kind="dcp", location=text)
    if not open_store(text).steps():
        for name in WEIGHTS_NAMES:
            if (path / name).is_file():
                return StateSource(kind="file", location=str(path / name))
    return StateSource(kind="checkpoint", location=text)


def has_names(state: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a state has its values by name, as a model's has. No source is trusted to have such a state."""
    return isinstance(state, Mapping) and all(isinstance(name, str) for name in state)


def _is_object(uri: str) -> bool:
    """Return whether an S3 object exists."""
    bucket, key = _place(uri)
    return bucket.version(key, doing=f"could not look for {uri}") is not None


def _download(uri: str, path: Path) -> None:
    """Download one S3 object to a file."""
    from smddp.storage.s3_download import Downloads, ReplacedError

    bucket, key = _place(uri)
    version = bucket.version(key, doing=f"could not read {uri}")
    if version is None:
        raise CheckpointError(f"there is no {uri}")
    with path.open("w+b") as file:
        if version.size == 0:
            return
        file.truncate(version.size)
        content = memoryview(mmap.mmap(file.fileno(), version.size))  # the mapping ends with its last view
    try:
        Downloads(bucket).fill_in_parallel(key, 0, content, version)
    except (FileNotFoundError, ReplacedError) as error:
        raise CheckpointError(f"{uri} was replaced while it was read") from error


def _place(uri: str) -> tuple[S3Bucket, str]:
    from smddp.checkpoint.stores.s3_location import ADVICE, S3Location, store_error
    from smddp.storage.s3_bucket import S3Bucket  # needs boto3, which is slow to import

    location = S3Location.parse(uri)
    return S3Bucket(location.bucket, advice=ADVICE, failure=store_error), location.prefix


_ALIASES = {
    "model_state_dict": "model",
    "state_dict": "model",
    "optimizer_state_dict": "optimizer",
    "scheduler_state_dict": "scheduler",
    "lr_scheduler": "scheduler",
    "lr_scheduler_state_dict": "scheduler",
}


def _is_name_of(name: str, part: str) -> bool:
    """Return whether `name` is the part's name or an alias of it."""
    return part in (name, _part_called(name))


def _parts_of(state: Any, origin: str, part: str | None = None) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """Divide a foreign state into parts by smddp's names, and the names of other values, such as numbers.

    The state is a model's weights, or parts by name or alias. A `part` that is an alias in the state is its own name.
    Raise CheckpointError, which names `origin`, if there is no part, or if several names could be one part: `part`, or
    any part if that is None.
    """
    if state and has_names(state):
        names: dict[str, list[str]] = {}
        for name in (name for name, value in state.items() if isinstance(value, Mapping)):
            names.setdefault(name if name == part else _part_called(name), []).append(name)
        if names.keys().isdisjoint({"model", part}) and any(isinstance(each, torch.Tensor) for each in state.values()):
            return {"model": state}, []
        if names:
            read = {
                each: _one_name(each, found, origin) if part in (None, each) else found[0]
                for each, found in names.items()
            }
            return {each: state[name] for each, name in read.items()}, sorted(set(state) - set(read.values()))
    found = shown_names(state, most=10) if isinstance(state, Mapping) else f"a {type(state).__qualname__}"
    raise CheckpointError(
        f"{origin} holds {found or 'nothing'}, where a model's state_dict was expected, or a dict of such by part "
        '({"model": ..., "optimizer": ...})'
    )


def _one_name(part: str, names: list[str], origin: str) -> str:
    """Return the name to read a part by: the only one, or the part's own; raise CheckpointError if neither is there."""
    if len(names) == 1:
        return names[0]
    if part not in names:
        raise CheckpointError(
            f"{origin} has {' and '.join(map(repr, names))}, and each may be its {part!r}: give load_weights() the "
            f"one to read, part={names[0]!r}, or remove the others from the file"
        )
    others = ", ".join(repr(name) for name in names if name != part)
    logger.warning("%s has %r, which is read, and also %s, which is not", origin, part, others)
    return part


def _part_called(name: str) -> str:
    return _ALIASES.get(name, name)
