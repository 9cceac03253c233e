"""A record as stored in a shard: its bytes and its position. A loader's worker decodes it into a sample."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Protocol

from smddp.errors import DataError

LARGEST_RECORD = 256 * 2**20
"""Bytes. A larger record is treated as damage or an attack, and not read into memory."""


class RawRecord(NamedTuple):
    """A record that is not decoded yet.

    A tuple, because sending it to another process takes a fifth of a dataclass's time (measured).
    """

    shard: str
    """The shard's name, the same wherever the shards are stored."""
    number: int
    """Its position in the shard, from 0."""
    offset: int
    """The byte of the shard at which it begins."""
    content: bytes | dict[str, Any]
    """A line of JSON; or the members of a tar file with the same stem: ``{"__key__": "000123", "jpg": b"..."}``."""
    location: str = ""
    """The location of the shards, as errors write it before the shard's name."""

    @property
    def key(self) -> str:
        """The record's name among all records, unchanged when the shards move."""
        return f"{self.shard}, record {self.number}"

    def __str__(self) -> str:
        """Return the record's position, for errors."""
        return place(self.location + self.shard, self.number, self.offset)

    def parse(self) -> dict[str, Any]:
        """Return the record as a dict.

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
        """A byte at or before the next record, with no other record between them."""

    def read(self) -> RawRecord | None:
        """Return the next record, or None at the end; raise DataError if it is damaged, too large or unreadable."""

    def skip(self) -> int | None:
        """Skip the next record; return its first byte's offset, or None at the end. Raise DataError as `read` does."""

    def close(self) -> None:
        """Close the file."""


def place(shard: str, number: int, offset: int) -> str:
    """Return a record's position in words."""
    return f"{shard}, record {number} at byte {offset}"
