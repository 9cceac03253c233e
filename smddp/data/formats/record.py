"""One record as it lies in a shard: its bytes, and where they were found. A loader's worker makes a sample of it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Protocol

from smddp.errors import DataError

LARGEST_RECORD = 256 * 2**20
"""Bytes: what is larger is taken for damage, or an attack, and not read into memory."""


class RawRecord(NamedTuple):
    """A record that is not decoded yet.

    A tuple, because it goes to another process: that takes a fifth of the time that it takes a dataclass (measured).
    """

    shard: str
    """The name of its shard, the same wherever the shards lie."""
    number: int
    """Its place in the shard, from 0."""
    offset: int
    """The byte of the shard at which it begins."""
    content: bytes | dict[str, Any]
    """A line of JSON; or the members of a tar file with the same stem: ``{"__key__": "000123", "jpg": b"..."}``."""
    location: str = ""
    """Where the shards lie, as it stands before the shard's name."""

    @property
    def key(self) -> str:
        """What it is called among all records, also after the shards were moved."""
        return f"{self.shard}, record {self.number}"

    def __str__(self) -> str:
        """Say where it lies."""
        return place(self.location + self.shard, self.number, self.offset)

    def parse(self) -> dict[str, Any]:
        """Give the record as a dict.

        Raises:
            DataError: The line is not a JSON object.
        """
        if isinstance(self.content, dict):
            return self.content
        try:
            value = json.loads(self.content)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self}: the line is not JSON: {error}; mend the shard, or take it away") from error
        if not isinstance(value, dict):
            raise DataError(
                f"{self}: the line is {type(value).__name__}, not an object; write each record as {{...}} on a line"
            )
        return value


class RecordReader(Protocol):
    """Reads the records of one shard in sequence."""

    @property
    def number(self) -> int:
        """The number of the next record."""

    @property
    def offset(self) -> int:
        """A byte from which on the next record is read; none lies between."""

    def read(self) -> RawRecord | None:
        """Give the next record; None at the end.

        Raises:
            DataError: It is cut, damaged, too large, or cannot be read.
        """

    def skip(self) -> int | None:
        """Pass over the next record, and give the byte at which it begins; None at the end.

        Raises:
            DataError: As `read`.
        """

    def close(self) -> None:
        """Close the file."""


def place(shard: str, number: int, offset: int) -> str:
    """Say where a record lies."""
    return f"{shard}, record {number} at byte {offset}"
