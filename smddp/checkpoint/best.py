"""The best checkpoint by a metric: the one before a training began to overfit, and the one to publish."""

from __future__ import annotations

import logging
import math
import os
from functools import partial
from typing import Literal

from smddp.checkpoint.convert.sources import no_checkpoint_in
from smddp.checkpoint.format.manifest import Manifest
from smddp.checkpoint.restore.reader import CheckpointInfo, inspect
from smddp.checkpoint.stores import Store, StoreError, open_store
from smddp.checkpoint.stores.parallel import in_parallel
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)

_THREADS = 16
"""Manifests that are read at a time: in S3 each is a request."""


def find_best(location: str | os.PathLike[str], metric: str, mode: Literal["max", "min"] = "max") -> CheckpointInfo:
    """Find the valid checkpoint with the best value of a metric.

    Of two that are as good the older is the better, as for `Retention`. NaN is never the best.

    Args:
        location: a directory, or ``s3://bucket/prefix``.
        metric: the name of a metric in the manifests.
        mode: whether a larger value is better, as of an accuracy, or a smaller one, as of a loss.

    Returns:
        It; every byte of it is verified.

    Raises:
        CheckpointError: there is no checkpoint, none has the metric, or none that has it is valid.
        ValueError: the mode is neither.
        StoreError, OSError: the place cannot be read.
    """
    if mode not in ("max", "min"):
        raise ValueError(f"mode is {mode!r}: whether the best is the 'max' or the 'min' of the metric")
    store = open_store(location)
    steps = store.steps()
    if not steps:
        raise no_checkpoint_in(store)
    found = in_parallel([partial(_manifest, store, step) for step in steps], threads=_THREADS)
    manifests = [manifest for manifest in found if manifest is not None]
    sign = -1.0 if mode == "max" else 1.0
    ranked = sorted(
        (sign * manifest.metrics[metric], manifest.step)
        for manifest in manifests
        if not math.isnan(manifest.metrics.get(metric, math.nan))
    )
    if not ranked:
        known = sorted({name for manifest in manifests for name in manifest.metrics})
        has = f"only of {', '.join(known)}" if known else "nor of another: trainer.log(accuracy=...) gives them"
        raise CheckpointError(f"no checkpoint in {store} has a value of {metric!r}, {has}")
    damaged = []
    for _, step in ranked:
        info = inspect(store, step)
        if info.valid:
            return info
        logger.warning("passed over %s, which is better by %s: %s", info.path, metric, info.reason)
        damaged.append(info.path)
    raise CheckpointError(f"of the checkpoints in {store} that have {metric!r} none is valid: {', '.join(damaged)}")


def _manifest(store: Store, step: int) -> Manifest | None:
    """Read a manifest; None if there is none that can be trusted."""
    try:
        content = store.read_manifest(step)
        manifest = None if content is None else Manifest.from_json(content)
        return manifest if manifest is not None and manifest.step == step else None
    except StoreError:
        raise
    except CheckpointError as error:
        logger.warning("passed over %s: %s", store.path(step), error)
        return None
