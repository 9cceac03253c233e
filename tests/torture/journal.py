"""What a process tells of itself, line by line, so that it outlives a SIGKILL."""

from __future__ import annotations

import os
from pathlib import Path


class Journal:
    """Lines of words, the first of which says what happened and the second at which step; each is one write."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, step: int, *words: object) -> None:
        os.write(self._descriptor, (" ".join([kind, str(step), *map(str, words)]) + "\n").encode())


def read_journal(path: Path) -> list[list[str]]:
    """Give the lines, word by word; none if nothing was told."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
