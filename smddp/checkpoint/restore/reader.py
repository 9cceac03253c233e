"""Reads the newest valid checkpoint of a location, or the one of a given step. Verifies the bytes that it returns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from smddp.checkpoint.format.manifest import STATE_NAME, Manifest, parse_json
from smddp.checkpoint.format.shards import Box, division_of, with_layout_of
from smddp.checkpoint.format.state_tree import ShardedEntry, sharded_entries, unflatten
from smddp.checkpoint.format.tensors import Entry, empty_tensor
from smddp.checkpoint.restore.listing import ScanResult, check_sizes, examine, look_until_settled
from smddp.checkpoint.restore.verified import VerifiedFiles
from smddp.checkpoint.stores.store import Store, step_name
from smddp.display_text import shown_path
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True, frozen=True)
class Loaded:
    """A verified checkpoint. `smddp.checkpoint.format.state_tree` splits each part into skeleton and tensors."""

    manifest: Manifest
    skeletons: Mapping[str, Any]
    """Each part without its tensors, by name."""
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    """The tensors of each requested part, by the names of the part and the tensor. Each has its own storage."""

    def unflatten(self, part: str) -> Any:
        """Return a part as its state_dict() was. Raise CheckpointError if it is absent or was not requested."""
        if part not in self.skeletons or part not in self.tensors:
            raise CheckpointError(
                f"the checkpoint of step {self.manifest.step} has no {part!r}, only {', '.join(sorted(self.tensors))}"
            )
        with _put_together(part, self.manifest.step):
            return unflatten(self.skeletons[part], self.tensors[part])


@contextmanager
def _put_together(part: str, step: int) -> Iterator[None]:
    """Turn the errors of a malformed skeleton, which is untrusted, into CheckpointError."""
    try:
        yield
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{part!r} of the checkpoint of step {step} cannot be put together: {type(error).__name__}: {error}"
        ) from error


@dataclass(slots=True, frozen=True)
class Unread:
    """Stands for a tensor of a checkpoint that is not read yet."""

    name: str
    shape: tuple[int, ...]

    def numpy(self) -> Unread:
        """Return itself, for an array."""
        return self

    def __getitem__(self, _index: object) -> Unread:
        return self


FindTargets = Callable[[Any], Mapping[str, torch.Tensor]]
"""Gets the state of a part with an `Unread` for each tensor; returns the DTensors to load, by the names of those."""

NO_TARGETS: Mapping[str, FindTargets] = {}


def read_checkpoint(store: Store, step: int, *, load: Callable[[Manifest], Loaded] | None = None) -> Loaded:
    """Read one checkpoint, by `load` as in `read_newest`.

    Raise CheckpointError if it is absent or not valid. StoreError and OSError say nothing about its validity.
    """
    info, loaded = examine(store, step, load or partial(load_parts, store, parts=None))
    if loaded is None:
        raise CheckpointError(f"cannot read the checkpoint {info.path}: {info.reason}")
    return loaded


def read_newest(
    store: Store, parts: Collection[str] | None = None, *, load: Callable[[Manifest], Loaded] | None = None
) -> Loaded | None:
    """Read the newest valid checkpoint; None if no save ever finished. Log a warning for each one skipped.

    `load` reads it, in place of this function, and raises CheckpointError with only the reason if it is not valid.
    Raise CheckpointError if none is valid, a newer smddp wrote the newest, or they are removed while they are read.
    """
    load = load or partial(load_parts, store, parts=parts)
    # Only the files of `parts` are read and verified. An error of the store does not skip a checkpoint, which may be
    # valid: an older one would lose progress.
    told: set[tuple[int, str]] = set()

    def look() -> ScanResult[Loaded]:
        passed_over: dict[int, str | None] = {}
        for step in store.newest_first():
            info, loaded = examine(store, step, load)
            if loaded is not None:
                return ScanResult(found=loaded, passed_over=passed_over)
            if info.status == "newer":
                raise CheckpointError(f"cannot read the checkpoint {info.path}: {info.reason}")
            if (step, info.reason) not in told:
                told.add((step, info.reason))
                logger.warning("skipped the checkpoint %s: %s", shown_path(info.path), info.reason)
            passed_over[step] = info.reason if info.status == "damaged" else None
        return ScanResult(found=None, passed_over=passed_over)

    last = look_until_settled(store, look)
    damaged = [f"{step_name(step)}: {reason}" for step, reason in last.passed_over.items() if reason is not None]
    if last.found is None and damaged:
        raise CheckpointError(
            f"there are checkpoints in {store}, but none is valid ({'; '.join(damaged)}); restore one from a copy, or "
            "move them away to start anew"
        )
    return last.found


def load_parts(
    store: Store,
    manifest: Manifest,
    *,
    parts: Collection[str] | None,
    targets: Mapping[str, FindTargets] = NO_TARGETS,
    whole: bool = True,
) -> Loaded:
    """Read and verify a checkpoint, with the tensors of `parts`, or of all parts if None.

    Of a tensor with a target only this rank's values are read, and it is returned as a DTensor of the target's layout.
    The others are read only if `whole`. Raise CheckpointError with only the reason.
    """
    check_sizes(store, manifest)
    files = VerifiedFiles(store, manifest)
    try:
        skeletons = dict(parse_json(files.state()).items())
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{STATE_NAME} is not the JSON object that it should be: {error}") from error
    wanted = sorted({*skeletons, *manifest.parts} if parts is None else set(parts) & set(skeletons))
    places: dict[str, dict[str, _Place]] = {}
    for part, entries in files.entries(wanted).items():
        with _put_together(part, manifest.step):
            places[part] = _places(skeletons.get(part), entries, targets.get(part), whole=whole)
    files.read(
        {part: {piece: each for each in found.values() for piece in each.pieces} for part, found in places.items()}
    )
    tensors = {part: {name: each.tensor() for name, each in found.items()} for part, found in places.items()}
    return Loaded(manifest=manifest, skeletons=skeletons, tensors=tensors)


def _places(
    skeleton: Any, entries: Mapping[str, Entry], find_targets: FindTargets | None, *, whole: bool
) -> dict[str, _Place]:
    """Return the place of each tensor of a part that is to be read, by name."""
    sharded = {each.name: each for each in sharded_entries(skeleton)}
    pieces: set[str] = set()
    for each in sharded.values():  # before memory is taken for them
        for piece, box in each.pieces.items():
            entry = entries.get(piece)
            if entry is None or (entry.dtype, entry.shape) != (each.dtype, box.shape) or piece in pieces:
                raise CheckpointError(f"{piece[:100]!r}, a piece of {each.name[:100]!r}, is missing or another tensor")
            pieces.add(piece)
    of_part = {
        name: ShardedEntry(name, each.dtype, each.shape, {name: Box.whole(each.shape)})
        for name, each in entries.items()
        if name not in pieces
    } | sharded
    targets: Mapping[str, torch.Tensor] = {}
    if find_targets is not None:
        targets = find_targets(unflatten(skeleton, {name: Unread(name, each.shape) for name, each in of_part.items()}))
    return {name: _Place(each, targets.get(name)) for name, each in of_part.items() if whole or name in targets}


class _Place:
    """Receives one tensor of a checkpoint: all of its values, or those that this rank has of a DTensor."""

    def __init__(self, saved: ShardedEntry, target: torch.Tensor | None) -> None:
        self._saved, self._target = saved, target
        self._box = Box.whole(saved.shape) if target is None else division_of(target).own
        self.pieces = {name: box for name, box in saved.pieces.items() if box.overlap(self._box) is not None}
        """The box of each piece of which it needs values, by the name of the piece in the files."""
        self._values: torch.Tensor | None = None
        if not self.keeps(saved.name):
            self._values = empty_tensor(saved.dtype, self._box.shape)

    def keeps(self, _name: str) -> bool:
        """Return whether the only piece that it needs is its box, so that the piece's memory becomes the tensor's."""
        return list(self.pieces.values()) == [self._box]

    def keep(self, _name: str, tensor: torch.Tensor) -> None:
        """Keep the only piece."""
        self._values = tensor

    def copy(self, name: str, box: Box, values: torch.Tensor) -> None:
        """Copy the values of a box of a piece; threads may copy several pieces at a time, which do not overlap."""
        if self._values is None:  # a small one, which is the only piece
            self._values = empty_tensor(self._saved.dtype, self._box.shape)
        copied = box.shifted(self.pieces[name].start)
        if (overlap := copied.overlap(self._box)) is not None:
            self._values[overlap.within(self._box)] = values[overlap.within(copied)]

    def tensor(self) -> torch.Tensor:
        """Return the tensor, once all pieces were taken."""
        assert self._values is not None, self._saved.name
        return self._values if self._target is None else with_layout_of(self._target, self._values)
