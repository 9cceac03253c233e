"""From a place with checkpoints to the newest that is valid to the last byte, or to a list that says what each is."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import torch

from smddp.checkpoint.format import strict_json
from smddp.checkpoint.format.manifest import Manifest, NewerFormatError
from smddp.checkpoint.format.names import MANIFEST_NAME, STATE_NAME
from smddp.checkpoint.format.state_tree import unflatten
from smddp.checkpoint.restore.settled import Look, look_until_settled
from smddp.checkpoint.restore.verified import VerifiedFiles
from smddp.checkpoint.stores import open_store
from smddp.checkpoint.stores.directory_errors import MISSING
from smddp.checkpoint.stores.store import Store, StoreError, step_name
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


@dataclass(kw_only=True, slots=True, frozen=True)
class CheckpointInfo:
    """A checkpoint, and whether it can be trusted."""

    step: int
    path: str
    status: Literal["valid", "incomplete", "damaged", "newer", "unreadable"]
    """Incomplete: it has no manifest, because its save was interrupted; it never was a checkpoint. Damaged: it was one.
    Newer: it needs a newer smddp. Unreadable: whoever looked may not read it, so that nobody knows; only
    `inspect_each_alone` says so, others raise."""
    reason: str
    """Why it is not valid; empty if it is."""
    manifest: Manifest | None
    """What it should be; None where that cannot be read."""

    @property
    def valid(self) -> bool:
        """Whether everything that was verified is as it was written."""
        return self.status == "valid"


@dataclass(kw_only=True, slots=True, frozen=True)
class Loaded:
    """A checkpoint, verified, each part of its state taken apart as by `smddp.checkpoint.format.state_tree`."""

    manifest: Manifest
    skeletons: Mapping[str, Any]
    """All but the tensors of each part, by the part's name."""
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    """The tensors of each part that was asked for, by the part's name and theirs. Each has a storage of its own."""

    def unflatten(self, part: str) -> Any:
        """Put a part together, as its state_dict() gave it.

        Raises:
            CheckpointError: It is not there, or its tensors were not asked for.
        """
        if part not in self.skeletons or part not in self.tensors:
            raise CheckpointError(
                f"the checkpoint of step {self.manifest.step} has no {part!r}, only {', '.join(sorted(self.tensors))}"
            )
        try:
            return unflatten(self.skeletons[part], self.tensors[part])
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{part!r} of the checkpoint of step {self.manifest.step} cannot be put together: "
                f"{type(error).__name__}: {error}"
            ) from error


def list_checkpoints(location: str | os.PathLike[str], *, deep: bool = True) -> list[CheckpointInfo]:
    """Look at all checkpoints of a place.

    Args:
        location: A directory, or ``s3://bucket/prefix``.
        deep: Verify every byte; otherwise only what `inspect` says.

    Returns:
        One entry a checkpoint, oldest first; none if the directory does not exist.

    Raises:
        StoreError, OSError: The place cannot be read.
    """
    store = open_store(location)
    return [inspect(store, step, deep=deep) for step in store.steps()]


def inspect(store: Store, step: int, *, deep: bool = True) -> CheckpointInfo:
    """Verify one checkpoint, in little memory.

    Args:
        store: Where it lies.
        step: Its step.
        deep: Verify every byte; otherwise the manifest, and that all files are there with their sizes.

    Raises:
        StoreError, OSError: It cannot be read, whether it is valid or not.
    """
    info, _ = _examine(store, step, VerifiedFiles.verify if deep else VerifiedFiles.check_sizes)
    return info


def inspect_each_alone(store: Store, step: int, *, deep: bool = True) -> CheckpointInfo:
    """Verify one checkpoint of several that somebody wants to see: one that may not be read does not hide the others.

    Raises:
        StoreError: The store cannot be reached now, and so neither can the others.
    """
    try:
        return inspect(store, step, deep=deep)
    except (StoreError, OSError) as error:
        if isinstance(error, StoreError) and error.transient:
            raise
        return CheckpointInfo(step=step, path=store.path(step), status="unreadable", reason=str(error), manifest=None)


def read_checkpoint(store: Store, step: int, parts: Collection[str] | None = None) -> Loaded:
    """Read one checkpoint.

    Args:
        store: Where it lies.
        step: Its step.
        parts: The parts of the state whose tensors are wanted; all if None.

    Raises:
        CheckpointError: There is none, or it is not valid.
        StoreError, OSError: It cannot be read, whether it is valid or not.
    """
    info, loaded = _examine(store, step, partial(_load, parts=parts))
    if loaded is None:
        raise CheckpointError(f"cannot read the checkpoint {info.path}: {info.reason}")
    return loaded


def read_newest(store: Store, parts: Collection[str] | None = None) -> Loaded | None:
    """Read the newest valid checkpoint. For each newer one that is passed over a warning says why.

    Args:
        store: Where they lie.
        parts: The parts of the state whose tensors are wanted; all if None. Only their files are verified.

    Returns:
        It; None if no checkpoint was ever finished here.

    Raises:
        CheckpointError: There are checkpoints, but none is valid, or the newest needs a newer smddp, or they are
            removed faster than they can be read.
        StoreError, OSError: One cannot be read, whether it is valid or not.
    """
    told: set[tuple[int, str]] = set()

    def look() -> Look[Loaded]:
        passed_over: dict[int, str | None] = {}
        for step in store.newest_first():
            info, loaded = _examine(store, step, partial(_load, parts=parts))
            if loaded is not None:
                return Look(found=loaded, passed_over=passed_over)
            if info.status == "newer":
                raise CheckpointError(f"cannot read the checkpoint {info.path}: {info.reason}")
            if (step, info.reason) not in told:
                told.add((step, info.reason))
                logger.warning("skipped the checkpoint %s: %s", info.path, info.reason)
            passed_over[step] = info.reason if info.status == "damaged" else None
        return Look(found=None, passed_over=passed_over)

    last = look_until_settled(store, look)
    damaged = [f"{step_name(step)}: {reason}" for step, reason in last.passed_over.items() if reason is not None]
    if last.found is None and damaged:
        raise CheckpointError(
            f"there are checkpoints in {store}, but none is valid ({'; '.join(damaged)}); restore one from a copy, or "
            "move them away to start anew"
        )
    return last.found


def _examine(
    store: Store, step: int, look: Callable[[VerifiedFiles], _Result]
) -> tuple[CheckpointInfo, _Result | None]:
    """Say what a checkpoint is after a look at its files, and give what the look gave if it is valid."""
    found = partial(CheckpointInfo, step=step, path=store.path(step))
    data = manifest = None
    try:
        data = store.read_manifest(step)
        if data is None:
            reason = f"it has no {MANIFEST_NAME}: its save was interrupted"
            return found(status="incomplete", reason=reason, manifest=None), None
        manifest = Manifest.from_json(data)
        if manifest.step != step:
            raise CheckpointError(f"its {MANIFEST_NAME} is that of step {manifest.step}")
        result = look(VerifiedFiles(store, manifest))
        return found(status="valid", reason="", manifest=manifest), result
    except NewerFormatError as error:
        return found(status="newer", reason=str(error), manifest=None), None
    except StoreError:
        raise
    except CheckpointError as error:
        reason = str(error)
    except OSError as error:
        if error.errno not in MISSING:  # a disk that fails, for instance: that does not make a checkpoint damaged
            raise
        reason = str(error)
    if manifest is not None and store.read_manifest(step) != data:
        return _examine(store, step, look)  # it was removed, or saved again, while it was read
    return found(status="damaged", reason=reason, manifest=manifest), None


def _load(files: VerifiedFiles, *, parts: Collection[str] | None) -> Loaded:
    files.check_sizes()
    try:
        skeletons = dict(strict_json.loads(files.state()).items())
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{STATE_NAME} is not the JSON object that it should be: {error}") from error
    wanted = {*skeletons, *files.manifest.parts} if parts is None else set(parts) & set(skeletons)
    return Loaded(manifest=files.manifest, skeletons=skeletons, tensors=files.tensors(sorted(wanted)))
