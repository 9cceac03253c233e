"""Inspect a job's checkpoints from outside the job."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from estimators.errors import EstimatorError

if TYPE_CHECKING:
    from smddp.checkpoint import CheckpointInfo
    from smddp.checkpoint.stores import Store

logger = logging.getLogger(__name__)

_LOOKS_AT_A_TIME = 16


def place(name: str, description: Mapping[str, Any]) -> str:
    """Return the URI of a job's checkpoints, or raise EstimatorError if it keeps none."""
    uri: str | None = description.get("CheckpointConfig", {}).get("S3Uri")
    if uri is None:
        raise EstimatorError(
            f"{name} keeps no checkpoints: it was sent without checkpoint_s3_uri "
            "(CheckpointConfig), so there is nothing to look at or to go on from. Send it anew with one."
        )
    return uri


def listed(uri: str, s3: Any, *, deep: bool) -> list[CheckpointInfo]:
    """Return all checkpoints below a URI, oldest first; an unreadable one does not hide the others."""
    from smddp.checkpoint.restore.listing import inspect_each_alone
    from smddp.storage.parallel import in_parallel

    store = _store(uri, s3)
    looks = [partial(inspect_each_alone, store, step, deep=deep) for step in store.steps()]
    return in_parallel(looks, threads=1 if deep else _LOOKS_AT_A_TIME)


def require_something(uri: str, s3: Any) -> None:
    """Raise EstimatorError if a job can't resume from a URI: it is empty, or has no valid checkpoint.

    Only manifests and the sizes of files are checked.
    """
    from smddp.checkpoint.restore.listing import inspect_each_alone

    store = _store(uri, s3)
    passed_over = []
    for step in store.newest_first():
        info = inspect_each_alone(store, step, deep=False)
        if info.valid:
            logger.info("going on from the checkpoint of step %d in %s", step, uri)
            return
        passed_over.append(f"step {step}: {info.status}, {info.reason}")
    if passed_over:
        raise EstimatorError(f"No checkpoint in {uri} is valid ({'; '.join(passed_over)}). Restore one from a copy.")
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    if not s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix.rstrip('/')}/", MaxKeys=1).get("Contents"):
        raise EstimatorError(f"There is nothing in {uri} to go on from. Send the job anew, by Estimator.fit().")
    logger.info("no checkpoint of smddp's lies in %s itself; the script goes on from what it finds there", uri)


def _store(uri: str, s3: Any) -> Store:
    from smddp.checkpoint.stores import open_store
    from smddp.checkpoint.stores.s3 import S3Store

    return S3Store(uri, client=s3) if uri.startswith("s3://") else open_store(uri.removeprefix("file://"))
