"""Resolve a location, a path or ``s3://`` URI, to a checkpoint store or to one checkpoint in it."""

from __future__ import annotations

import os
from pathlib import Path

from smddp.checkpoint.format.manifest import MANIFEST_NAME
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.store import Store, step_of
from smddp.errors import CheckpointError

_CHECKPOINTS = "checkpoints"
"""The name of the checkpoints' directory in a run's directory."""


def open_store(location: str | os.PathLike[str]) -> Store:
    """Return the store at a directory or ``s3://bucket/prefix``; raise ValueError for any other location."""
    text = os.fspath(location)
    if text.startswith("s3://"):
        from smddp.checkpoint.stores.s3 import S3Store  # needs boto3, which is slow to import

        return S3Store(text)
    if text.startswith("s3:/") or "://" in text or not text:
        raise ValueError(
            f"{text!r} is no location for checkpoints: give a directory or, as a str and not as a Path, s3://bucket/prefix"
        )
    return DirectoryStore(text)


def checkpoints_of_run(location: str) -> str:
    """Return the location of a run's checkpoints: its directory in a run's directory, or the location itself."""
    if "://" in location or not (Path(location) / _CHECKPOINTS).is_dir():
        return location
    return str(Path(location) / _CHECKPOINTS)


def location_and_step(location: str | os.PathLike[str]) -> tuple[str, int | None]:
    """Split the location of a checkpoint into store and step; the step is None for the location of a store.

    Raise CheckpointError if a local checkpoint is absent.
    """
    store, step = split(location)
    text = os.fspath(location)
    if step is not None and not text.startswith("s3://") and not Path(text).exists():
        raise CheckpointError(f"there is nothing at {text}")
    return store, step


def split(location: str | os.PathLike[str]) -> tuple[str, int | None]:
    """Split like `location_and_step`, by the name only: the checkpoint need not exist."""
    text = os.fspath(location)
    if text.startswith("s3://"):
        store, _, name = text.rstrip("/").rpartition("/")
        step = step_of(name)
        return (text, None) if step is None else (store, step)
    absolute = os.path.abspath(text)  # noqa: PTH100 - Path.resolve would follow links
    step = step_of(os.path.basename(absolute))  # noqa: PTH119
    return (text, None) if step is None or not text else (os.path.dirname(absolute), step)  # noqa: PTH120


def no_directory(store: Store) -> CheckpointError | None:
    """Return the error for the store of a directory that is absent or a file; None for any other store."""
    text = str(store)
    if text.startswith("s3://") or (path := Path(text).expanduser()).is_dir():
        return None
    if not path.exists():
        return CheckpointError(f"there is no directory {text}")
    return CheckpointError(f"{text} is a file: give the directory that the checkpoints lie in")


def no_checkpoint_in(store: Store) -> CheckpointError:
    """Return the error for a store without checkpoints, with a hint where they may be."""
    text = str(store)
    advice = f"a checkpoint is a directory step-… with a {MANIFEST_NAME}"
    if not text.startswith("s3://") and (Path(text).expanduser() / _CHECKPOINTS).is_dir():
        advice = f"did you mean {Path(text) / _CHECKPOINTS}?"
    return no_directory(store) or CheckpointError(f"there is no checkpoint in {text}; {advice}")
