"""A file of lines in the order of their steps, which a resumed run continues from its checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


class LineFile:
    """A file to which whole lines are appended; its directory is created.

    Lines after ``step`` are removed: a killed run took these steps after its checkpoint, and a resume takes them again.
    ``step_of`` returns the step of a line, or None for one that is incomplete or foreign. ``header`` is the first line.
    """

    def __init__(
        self, path: Path, *, step_of: Callable[[str], int | None], step: int, header: str | None = None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Order: write the kept lines to a new file, then rename it over the old one, so that a kill leaves one of them.
        kept = [] if header is None else [header]
        if step and path.exists():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            kept += [line for line in lines if (found := step_of(line)) is not None and found <= step]
        new = path.with_name(f"{path.name}.new")
        new.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        new.replace(path)
        self._file = path.open("a", encoding="utf-8")
        self._process = os.getpid()

    def write(self, line: str) -> None:
        """Append a line and flush it, so that others can read it at once; do nothing in a forked process."""
        if os.getpid() == self._process:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
