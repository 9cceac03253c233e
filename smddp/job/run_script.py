"""Whose a run directory is: one run's at a time, and a default one's is one script's.

1. The launcher of a run locks the directory. A second run would replace the first one's reports and models long before
   it finds the checkpoints locked.
2. A default directory, such as ``runs/train``, is named after the script, and two scripts may share a name: one would
   resume the other's checkpoints. So its file ``script`` names the script. In a directory that the user gives, no such
   file is written or read.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smddp.display_text import shown_path, shown_text
from smddp.errors import JobError

logger = logging.getLogger(__name__)

MOVED = "Outside of SageMaker, --run-dir or SMDDP_RUN_DIR sets it: give a directory that can be written."
"""The remedy for a directory of a job that can't be made or written."""

_FILE = "script"
_WORK = ("checkpoints", "model")
"""Directories of a run whose content another script must not use or replace."""
_PATIENCE_SECONDS, _LOOK_SECONDS = 10.0, 0.1


@contextmanager
def lock_run_directory(directory: Path) -> Iterator[None]:
    """Make the directory, and lock it; raise JobError if another run still owns it after 10 s, or it can't be made.

    The kernel unlocks it if this process dies. A file system without locks locks nothing.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise JobError(f"The run's directory {directory} can't be written: {error.strerror}. {MOVED}") from error
    try:
        _lock(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    deadline, told = time.monotonic() + _PATIENCE_SECONDS, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise JobError(
                    f"Another run trains in {shown_path(directory)}: wait until it ends, or give this run another "
                    "directory by --run-dir or SMDDP_RUN_DIR."
                ) from None
        except OSError:
            return
        else:
            return
        if not told:
            told = True
            logger.info(
                "another run trains in %s; waiting up to %.0f s for its end", shown_path(directory), _PATIENCE_SECONDS
            )
        time.sleep(_LOOK_SECONDS)


def claim_run_directory(directory: Path, script: Path) -> None:
    """Record that a default run directory belongs to the script.

    Raise JobError if it has the checkpoints or the model of another script, or can't be written.
    """
    own, kept = _relative(script, directory), _read(directory)
    if own is None or kept == own:
        return
    if kept is not None and any(any((directory / name).glob("*")) for name in _WORK):
        other = directory.with_name(f"{script.resolve().parent.name}-{directory.name}")
        raise JobError(
            f"{shown_path(directory)} has the checkpoints or the model of another script of this name: {kept} ran "
            f"there, and this is {own}. Give this script a run directory of its own, by --run-dir {shown_path(other)} "
            f"or SMDDP_RUN_DIR; or give {shown_path(directory)} itself to continue there with this script."
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _FILE).write_text(f"{own}\n", encoding="utf-8")
    except OSError as error:
        raise JobError(f"The run's directory {directory} can't be written: {error.strerror}. {MOVED}") from error


def _relative(script: Path, directory: Path) -> str | None:
    """Return the script's path from the directory of ``runs``, so that a project that moves keeps its runs.

    None if there is no script: Python runs a prompt or a notebook.
    """
    return os.path.relpath(script.resolve(), directory.parent.parent.resolve()) if script.is_file() else None


def _read(directory: Path) -> str | None:
    try:
        return shown_text((directory / _FILE).read_text(encoding="utf-8")).strip() or None
    except (OSError, UnicodeDecodeError):
        return None
