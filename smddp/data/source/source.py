"""The protocol of a location of data: list its files, and read a file in sequence from any byte on.

A source does not know the content of the files.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Protocol, runtime_checkable

from smddp.display_text import counted

logger = logging.getLogger(__name__)

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
    """Files that are read in sequence. Implement it to read shards from another kind of storage."""

    def __str__(self) -> str:
        """Return the location, for people."""

    def list(self) -> list[Blob]:
        """Return all files at any depth, sorted by name, without those that `is_temporary`; log how many these are.

        Raises:
            DataError: The location is missing or cannot be read.
        """

    def open(self, name: str, start: int = 0, size: int | None = None) -> BinaryIO:
        """Open a file to read it in sequence: ``read(n)`` returns n bytes, fewer only at the end; ``close()`` ends it.

        Args:
            name: A name from `list`.
            start: The byte to begin at; at or beyond the file's end, the stream is empty.
            size: The most bytes to read; None reads to the end.

        Raises:
            DataError: The file is missing or cannot be read. Reads may raise it too, or an OSError.
        """


def is_temporary(name: str) -> bool:
    """Return whether a path has a name that programs use for unfinished files or for files that are not data."""
    return any(
        part.startswith(_TEMPORARY_PREFIXES) or part.lower().endswith(_TEMPORARY_SUFFIXES)
        for part in PurePosixPath(name).parts
    )


def log_left_out(names: Sequence[str], source: Source) -> None:
    """Log how many paths of a source are left out because they are temporary, and the first of them."""
    if names:
        logger.info(
            "left out %s in %s, %s for one: names that begin with %s or end with %s are those of unfinished files",
            counted(len(names), "path"),
            source,
            min(names),
            " ".join(_TEMPORARY_PREFIXES),
            " ".join(_TEMPORARY_SUFFIXES),
        )
