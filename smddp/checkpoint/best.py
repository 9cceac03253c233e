"""Find the best checkpoint by a metric: the one to publish, from before training began to overfit."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from functools import partial
from typing import Literal

from smddp.checkpoint.format.manifest import Manifest
from smddp.checkpoint.restore.listing import CheckpointInfo, inspect
from smddp.checkpoint.restore.settled import ScanResult, look_until_settled
from smddp.checkpoint.stores import Store, StoreError, open_store
from smddp.checkpoint.stores.opening import no_checkpoint_in
from smddp.errors import CheckpointError
from smddp.storage.parallel import in_parallel

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
