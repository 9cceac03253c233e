"""The script that a default run directory belongs to, kept in the directory as its file ``script``.

The default, such as ``runs/train``, is named after the script, and two scripts may share a name: one would resume the
other's checkpoints. In a directory that the user gives, no such file is written or read.
"""

from __future__ import annotations

import os
from pathlib import Path

from smddp.display_text import shown_path, shown_text
from smddp.errors import JobError

MOVED = "Outside of SageMaker, --run-dir or SMDDP_RUN_DIR sets it: give a directory that can be written."
"""The remedy for a directory of a job that can't be made or written."""

_FILE = "script"
_WORK = ("checkpoints", "model")
"""Directories of a run whose content another script must not use or replace."""


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
