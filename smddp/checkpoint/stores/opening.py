"""What a location names: the store that keeps checkpoints there, in a directory or S3, or one checkpoint in it."""

from __future__ import annotations

import os
from pathlib import Path

from smddp.checkpoint.format.names import MANIFEST_NAME
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.store import Store, step_of
from smddp.errors import CheckpointError

_CHECKPOINTS = "checkpoints"
"""What a run's directory calls the one with its checkpoints."""


def open_store(location: str | os.PathLike[str]) -> Store:
    """Give the store at a location.

    Args:
        location: A directory, or ``s3://bucket/prefix``.

    Raises:
        ValueError: It is neither.
    """
    text = os.fspath(location)
    if text.startswith("s3://"):
        from smddp.checkpoint.stores.s3 import S3Store  # only who saves there needs boto3

        return S3Store(text)
    if text.startswith("s3:/") or "://" in text or not text:
        raise ValueError(
            f"{text!r} is no place for checkpoints: give a directory or, as a str and not as a Path, s3://bucket/prefix"
        )
    return DirectoryStore(text)


def place_and_step(location: str | os.PathLike[str]) -> tuple[str, int | None]:
    """Take the location of one checkpoint apart; that of a place with checkpoints has no step.

    Raises:
        CheckpointError: It is a local directory of a checkpoint's name that is not there.
    """
    place, step = split(location)
    text = os.fspath(location)
    if step is not None and not text.startswith("s3://") and not Path(text).exists():
        raise CheckpointError(f"there is nothing at {text}")
    return place, step


def split(location: str | os.PathLike[str]) -> tuple[str, int | None]:
    """Take the name of one checkpoint apart, whether it is there or not; any other has no step."""
    text = os.fspath(location)
    if text.startswith("s3://"):
        place, _, name = text.rstrip("/").rpartition("/")
        step = step_of(name)
        return (text, None) if step is None else (place, step)
    absolute = os.path.abspath(text)  # noqa: PTH100 - Path.resolve would follow links
    step = step_of(os.path.basename(absolute))  # noqa: PTH119
    return (text, None) if step is None or not text else (os.path.dirname(absolute), step)  # noqa: PTH120


def no_checkpoint_in(store: Store) -> CheckpointError:
    """Say that a place has no checkpoint, and where there may be some."""
    text = str(store)
    advice = f"a checkpoint is a directory step-… with a {MANIFEST_NAME}"
    if not text.startswith("s3://"):
        path = Path(text)
        if not path.exists():
            return CheckpointError(f"there is no directory {text}")
        if not path.is_dir():
            return CheckpointError(f"{text} is a file: give the directory that the checkpoints lie in")
        if (path / _CHECKPOINTS).is_dir():
            advice = f"did you mean {path / _CHECKPOINTS}?"
    return CheckpointError(f"there is no checkpoint in {text}; {advice}")
