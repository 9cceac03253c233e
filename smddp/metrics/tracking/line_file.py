"""A file of lines in order of their steps, that a resumed run goes on with where its checkpoint was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


class LineFile:
    """A file to which whole lines are appended.

    Args:
        path: The file; its directory is made.
        step_of: The step of a line, without its end; None for a line that this file's writer did not finish or write.
        step: Lines beyond it are removed: the steps that a killed run took after its checkpoint come again.
        header: The first line.
    """

    def __init__(
        self, path: Path, *, step_of: Callable[[str], int | None], step: int, header: str | None = None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [] if header is None else [header]
        if step and path.exists():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            kept += [line for line in lines if (found := step_of(line)) is not None and found <= step]
        new = path.with_name(f"{path.name}.new")
        new.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        new.replace(path)  # a kill meanwhile leaves the old file or the new one
        self._file = path.open("a", encoding="utf-8")
        self._process = os.getpid()

    def write(self, line: str) -> None:
        """Append a line, so that others can read it now."""
        if os.getpid() == self._process:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
