"""What every place where data lies can do: list its files, and read one of them in sequence, from any byte on.

A source knows nothing of what is in the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Protocol, runtime_checkable

_TEMPORARY_PREFIXES = (".", "_", "~")  # hidden files, Hadoop's and Spark's _temporary and _SUCCESS, editors' copies
_TEMPORARY_SUFFIXES = (".tmp", ".temp", ".part", ".partial", ".crdownload", "~")


@dataclass(kw_only=True, slots=True, frozen=True)
class Blob:
    """One file of a source."""

    name: str
    """Its path below the source's location, with slashes."""
    size: int
    """Bytes."""


@runtime_checkable
class Source(Protocol):
    """Files to be read in sequence."""

    def __str__(self) -> str:
        """Give the location, for people."""

    def list(self) -> list[Blob]:
        """Give all files at any depth, sorted by name, without those that `is_temporary`.

        Raises:
            DataError: The location is missing or cannot be read.
        """

    def open(self, name: str, start: int = 0, size: int | None = None) -> BinaryIO:
        """Open a file to read it in sequence: ``read(n)`` gives n bytes, fewer only at the end; ``close()`` ends it.

        Args:
            name: As `list` gave it.
            start: The byte to begin at; at the file's end or beyond nothing is left to read.
            size: The most bytes to read; None is all that follow.

        Raises:
            DataError: The file is missing or cannot be read. Reading may raise it too, or an OSError.
        """


def is_temporary(name: str) -> bool:
    """Return whether a file or a directory above it is named as programs name what is not finished, or not data."""
    return any(
        part.startswith(_TEMPORARY_PREFIXES) or part.lower().endswith(_TEMPORARY_SUFFIXES)
        for part in PurePosixPath(name).parts
    )
