"""Reads the records of a JSON lines file: each non-blank line is one record."""

from __future__ import annotations

import json
from typing import BinaryIO, NoReturn

from smddp.data.formats.record import LARGEST_RECORD, RawRecord, place
from smddp.errors import DataError
from smddp.storage.byte_stream import ByteStream


class JsonLinesReader:
    """Cuts a file into lines; `RawRecord.parse` parses them later.

    ``file`` starts at byte ``offset`` of the shard, at record ``number``; ``location`` precedes the name in errors.
    ``size`` is the shard's bytes, None if unknown (a pipe); ``largest_record`` is the maximum bytes of a line.
    """

    def __init__(
        self,
        file: BinaryIO,
        *,
        name: str,
        location: str = "",
        number: int = 0,
        offset: int = 0,
        size: int | None = None,
        largest_record: int = LARGEST_RECORD,
    ) -> None:
        """Read a file, and own it: `close` closes it."""
        self.number = number
        self._name, self._location = name, location
        self._stream = ByteStream(file, name=location + name, offset=offset, size=size)
        self._largest = largest_record

    @property
    def offset(self) -> int:
        """The byte at which the next line begins."""
        return self._stream.offset

    def read(self) -> RawRecord | None:
        """Return the next line, or None at the end."""
        found = self._next()
        if found is None:
            return None
        offset, line = found
        return RawRecord(shard=self._name, number=self.number - 1, offset=offset, content=line, location=self._location)

    def skip(self) -> int | None:
        """Skip the next line, and return the byte at which it begins, or None at the end."""
        found = self._next()
        return None if found is None else found[0]

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _next(self) -> tuple[int, bytes] | None:
        stream = self._stream
        while True:
            offset = stream.offset
            line = stream.read_line(self._largest + 1)
            if not line:
                if stream.size is not None and offset < stream.size:
                    self._fail(offset, f"the file ends here, though it had {stream.size} bytes; restore it")
                return None
            if len(line) > self._largest:
                self._fail(
                    offset,
                    f"the line has more than {self._largest} bytes, the most of a record; raise largest_record, or "
                    "see whether these are JSON lines",
                )
            if not line.isspace():
                break
        if not line.endswith(b"\n"):
            self._check_whole(offset, line)
        self.number += 1
        return offset, line

    def _check_whole(self, offset: int, line: bytes) -> None:
        """Check a last line without a newline: if it is not JSON, its writer stopped in the middle."""
        try:
            json.loads(line)
        except (ValueError, RecursionError) as error:
            self._fail(offset, f"the last line is cut after {len(line)} bytes ({error}); write the shard anew", error)

    def _fail(self, offset: int, problem: str, cause: Exception | None = None) -> NoReturn:
        raise DataError(f"{place(self._stream.name, self.number, offset)}: {problem}") from cause
