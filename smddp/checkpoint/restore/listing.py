"""The checkpoints of a location and the status of each: valid, damaged or incomplete. Only a deep check imports torch.

``smddp.checkpoint.restore.reader`` reads a checkpoint to resume from it.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeVar

from smddp.checkpoint.format.manifest import MANIFEST_NAME, Manifest, NewerFormatError
from smddp.checkpoint.stores.filesystem import MISSING
from smddp.checkpoint.stores.opening import no_checkpoint_in, open_store
from smddp.checkpoint.stores.store import Store, StoreError, step_name
from smddp.display_text import as_size
from smddp.errors import CheckpointError
from smddp.process.notebook_html import table
from smddp.storage.parallel import in_parallel

_Result = TypeVar("_Result")


@dataclass(kw_only=True, slots=True, frozen=True)
class CheckpointInfo:
    """A checkpoint and its status."""

    step: int
    path: str
    status: Literal["valid", "incomplete", "damaged", "newer", "unreadable"]
    """Incomplete: an interrupted save without a manifest. Damaged: the manifest or a file is not as it was written.
    Newer: a newer smddp wrote the checkpoint. Unreadable: this user may not read it; only the command line shows this
    status, and functions raise the error."""
    reason: str
    """The reason why it is not valid; empty if it is."""
    manifest: Manifest | None
    """The manifest; None if it is absent or invalid."""

    @property
    def valid(self) -> bool:
        """Whether all verified bytes are as they were written."""
        return self.status == "valid"


class CheckpointList(list[CheckpointInfo]):
    """Checkpoints of a location, oldest first. A notebook shows them as a table."""

    def _repr_html_(self) -> str | None:
        return table(map(_row, self), ["step", "epoch", "saved", "size", "state", "metrics"]) or None


def _row(info: CheckpointInfo) -> Sequence[str | int]:
    state = info.status + (f": {info.reason}" if info.reason else "")
    if (manifest := info.manifest) is None:
        return info.step, "", "", "", state, ""
    saved = f"{manifest.saved_at.astimezone():%Y-%m-%d %H:%M:%S}"
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in manifest.metrics.items())
    return info.step, manifest.epoch_from_one, saved, as_size(manifest.size), state, metrics


def list_checkpoints(location: str | os.PathLike[str], *, deep: bool = True) -> list[CheckpointInfo]:
    """List all checkpoints of a location, with their status.

    Args:
        location: A directory, or ``s3://bucket/prefix``.
        deep: Verify every byte; otherwise the manifests, and the sizes of all files.

    Returns:
        A list with one entry per checkpoint, oldest first; empty if the directory does not exist.

    Raises:
        StoreError, OSError: The location cannot be read.
    """
    store = open_store(location)
    return CheckpointList(inspect(store, step, deep=deep) for step in store.steps())


def inspect(store: Store, step: int, *, deep: bool = True) -> CheckpointInfo:
    """Verify one checkpoint in little memory: every byte if `deep`, otherwise the manifest and the sizes of all files.

    Raise StoreError or OSError if the store fails, which says nothing about the checkpoint.
    """
    info, _ = examine(store, step, partial(_verify if deep else check_sizes, store))
    return info


def inspect_each_alone(store: Store, step: int, *, deep: bool = True) -> CheckpointInfo:
    """Verify one checkpoint of a list. Return "unreadable" where `inspect` raises, except for transient errors."""
    try:
        return inspect(store, step, deep=deep)
    except (StoreError, OSError) as error:
        if isinstance(error, StoreError) and error.transient:
            raise
        return CheckpointInfo(step=step, path=store.path(step), status="unreadable", reason=str(error), manifest=None)


def examine(store: Store, step: int, look: Callable[[Manifest], _Result]) -> tuple[CheckpointInfo, _Result | None]:
    """Return the status of a checkpoint, and the result of `look` if it is valid.

    `look` reads the files that the manifest names. It raises CheckpointError if one is missing or changed.
    """
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
        result = look(manifest)
        return found(status="valid", reason="", manifest=manifest), result
    except NewerFormatError as error:
        return found(status="newer", reason=str(error), manifest=None), None
    except StoreError:
        raise
    except CheckpointError as error:
        reason = str(error)
    except OSError as error:
        if error.errno not in MISSING:  # a failing disk, for instance, does not make the checkpoint damaged
            raise
        reason = str(error)
    if manifest is not None and store.read_manifest(step) != data:
        return examine(store, step, look)  # it was removed or saved again during the look
    return found(status="damaged", reason=reason, manifest=manifest), None


def check_sizes(store: Store, manifest: Manifest) -> None:
    """Verify that all files of a manifest exist with their sizes. Raise CheckpointError with only the reason if not."""
    at = partial(store.size, manifest.step, manifest.directory)
    sizes = in_parallel([partial(at, name) for name in manifest.files], threads=store.readers)
    for (name, record), size in zip(manifest.files.items(), sizes, strict=True):
        if size is None:
            raise CheckpointError(f"{name} is missing")
        if size != record.size:
            raise CheckpointError(f"{name} has {size} bytes instead of {record.size}")


def _verify(store: Store, manifest: Manifest) -> None:
    from smddp.checkpoint.restore.verified import VerifiedFiles  # loads torch, which takes seconds

    check_sizes(store, manifest)
    VerifiedFiles(store, manifest).verify()


logger = logging.getLogger(__name__)

_THREADS = 16
"""Manifests read at the same time. In S3 each is one request."""


def find_best(location: str | os.PathLike[str], metric: str, mode: Literal["max", "min"] = "max") -> CheckpointInfo:
    """Find the valid checkpoint with the best value of a metric.

    Of equal values the older checkpoint wins, as for `Retention`. NaN is never the best.

    Args:
        location: A directory, or ``s3://bucket/prefix``.
        metric: The name of a metric in the manifests.
        mode: ``"max"`` if a larger value is better (accuracy), ``"min"`` if a smaller one is (loss).

    Returns:
        The checkpoint, with every byte verified.

    Raises:
        CheckpointError: There is no checkpoint, no checkpoint has the metric, or no valid one has.
        ValueError: The mode is neither ``"max"`` nor ``"min"``.
        StoreError, OSError: The location cannot be read.
    """
    if mode not in ("max", "min"):
        raise ValueError(f"mode is {mode!r}: whether the best is the 'max' or the 'min' of the metric")
    store = open_store(location)
    manifests: list[Manifest] = []

    def look() -> ScanResult[CheckpointInfo]:
        steps = store.steps()
        found = in_parallel([partial(_manifest, store, step) for step in steps], threads=_THREADS)
        manifests[:] = [manifest for manifest in found if isinstance(manifest, Manifest)]
        passed_over = {step: None if manifest is None else "" for step, manifest in zip(steps, found, strict=True)}
        for step in _ranked(manifests, metric, mode):
            info = inspect(store, step)
            if info.valid:
                return ScanResult(found=info, passed_over=passed_over)
            logger.warning("passed over %s, which is better by %s: %s", info.path, metric, info.reason)
            passed_over[step] = None if info.status == "incomplete" else info.reason
        return ScanResult(found=None, passed_over=passed_over)

    last = look_until_settled(store, look)
    if last.found is not None:
        return last.found
    if not last.passed_over:
        raise no_checkpoint_in(store)
    ranked = _ranked(manifests, metric, mode)
    if not ranked:
        known = sorted({name for manifest in manifests for name in manifest.metrics})
        has = f"only of {', '.join(known)}" if known else "nor of another: trainer.log(accuracy=...) gives them"
        raise CheckpointError(f"no checkpoint in {store} has a value of {metric!r}, {has}")
    damaged = ", ".join(map(store.path, ranked))
    raise CheckpointError(f"of the checkpoints in {store} that have {metric!r} none is valid: {damaged}")


def _ranked(manifests: Sequence[Manifest], metric: str, mode: Literal["max", "min"]) -> list[int]:
    """Return the steps whose manifest has the metric, best first, and the older first among equals."""
    sign = -1.0 if mode == "max" else 1.0
    ranked = sorted(
        (sign * manifest.metrics[metric], manifest.step)
        for manifest in manifests
        if not math.isnan(manifest.metrics.get(metric, math.nan))
    )
    return [step for _, step in ranked]


def _manifest(store: Store, step: int) -> Manifest | str | None:
    """Return the manifest, the reason why it is invalid, or None if absent."""
    try:
        content = store.read_manifest(step)
        manifest = None if content is None else Manifest.from_json(content)
        if manifest is not None and manifest.step != step:
            raise CheckpointError(f"its manifest is that of step {manifest.step}")
    except StoreError:
        raise
    except CheckpointError as error:
        logger.warning("passed over %s: %s", store.path(step), error)
        return str(error)
    return manifest


_MOST_LOOKS = 20

_Found = TypeVar("_Found")


@dataclass(kw_only=True, slots=True, frozen=True)
class ScanResult(Generic[_Found]):
    """The result of one look at all checkpoints of a location."""

    found: _Found | None
    """The checkpoint or other result; None if absent."""
    passed_over: Mapping[int, str | None]
    """The reason each listed step was rejected; None if it had no manifest."""


def look_until_settled(store: Store, look: Callable[[], ScanResult[_Found]]) -> ScanResult[_Found]:
    """Repeat `look` until it finds a result or two looks agree, and return the last one.

    Raise CheckpointError if the checkpoints keep changing, or if all that were listed are removed.
    """
    before: Mapping[int, str | None] | None = None
    listed: set[int] = set()
    for _ in range(_MOST_LOOKS):
        last = look()
        passed_over = last.passed_over
        if last.found is not None or (passed_over and None not in passed_over.values()):
            return last
        if passed_over == before and (passed_over or not listed):
            return last
        if passed_over == before:
            break
        before = passed_over
        listed.update(passed_over)
    names = ", ".join(map(step_name, sorted(listed)[-3:]))
    raise CheckpointError(
        f"the checkpoints in {store} ({names}) were removed while they were looked at: whoever saves there keeps too "
        "few for the time that reading one takes, or somebody removes them; try again, and let it keep more, as with "
        "Retention(last=5)"
    )
