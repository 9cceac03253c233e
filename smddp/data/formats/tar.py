"""Reads the records of a tar file, by webdataset's convention: neighbouring members with the same stem are one record.

``images/000123.jpg`` and ``images/000123.cls`` are ``{"__key__": "images/000123", "jpg": b"...", "cls": b"..."}``: the
stem ends at the first dot of the name. Directories, ``__meta__``, members without a dot and members whose name begins
with a dot belong to no record. Links, sparse files and devices are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple, NoReturn

from smddp.data.formats.record import LARGEST_RECORD, RawRecord, place
from smddp.errors import DataError
from smddp.storage.byte_stream import ByteStream
from smddp.storage.untrusted_tar import (
    BLOCK,
    BLOCK_DEVICE,
    CHARACTER_DEVICE,
    DIRECTORY,
    HARD_LINK,
    NAMED_PIPE,
    SPARSE,
    SYMBOLIC_LINK,
    TarMembers,
)

_LINK = "shards hold files only: pack what it leads to (tar --dereference --hard-dereference)"
_SPECIAL = "shards hold files only: leave it out"
_REFUSED: Mapping[bytes, tuple[str, str]] = {
    HARD_LINK: ("a hard link", _LINK),
    SYMBOLIC_LINK: ("a symbolic link", _LINK),
    CHARACTER_DEVICE: ("a device", _SPECIAL),
    BLOCK_DEVICE: ("a device", _SPECIAL),
    NAMED_PIPE: ("a named pipe", _SPECIAL),
    SPARSE: ("a sparse file", "pack it without --sparse"),
}
"""Kinds of members that are refused: the kind in words, and what the user can do."""
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__(/|$)")


class _Member(NamedTuple):
    key: str
    field: str
    size: int
    offset: int
    archive: int
    """The number of archive ends before it: several tar files may follow each other in one stream."""


class TarReader:
    """Cuts a tar file, or several one after the other, into records.

    ``file`` starts at byte ``offset`` of the shard, where record ``number`` begins; ``location`` precedes the name in
    errors. ``size`` is the shard's bytes, None if unknown (a pipe); ``largest_record`` bounds the bytes of a record's
    members and their names.
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
        self._members = TarMembers(self._stream, self._fail)
        self._largest = largest_record
        self._next: _Member | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the reader stands right behind an end-of-archive mark."""
        return self._members.is_complete

    @property
    def offset(self) -> int:
        """The byte at which the next record begins, or the stream's position if the next member is not read yet."""
        return self._next.offset if self._next else self._stream.offset

    def read(self) -> RawRecord | None:
        """Return the next record, or None at the end."""
        fields: dict[str, Any] = {}
        offset = self._record(fields)
        if offset is None:
            return None
        return RawRecord(
            shard=self._name, number=self.number - 1, offset=offset, content=fields, location=self._location
        )

    def skip(self) -> int | None:
        """Skip the next record, and return the byte at which it begins, or None at the end."""
        return self._record(None)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _record(self, fields: dict[str, Any] | None) -> int | None:
        """Read to the end of the next record, storing its members in ``fields`` unless that is None."""
        first = member = self._next or self._member()
        if first is None or member is None:
            return None
        if fields is not None:
            fields["__key__"] = first.key
        seen = {"__key__"}
        left = self._largest - len(first.key)
        while member is not None and (member.key, member.archive) == (first.key, first.archive):
            if member.field in seen:
                self._fail(
                    member.offset,
                    f"there is a second {member.key}.{member.field}; a record has each of its files once: name the "
                    "files of different records differently up to the first dot",
                )
            seen.add(member.field)
            left -= len(member.field) + member.size
            if left < 0:
                self._too_large(first.offset)
            self._data(member, fields)
            member = self._member()
        self._next = member
        self.number += 1
        return first.offset

    def _data(self, member: _Member, fields: dict[str, Any] | None) -> None:
        padding = -member.size % BLOCK
        stored = member.size + padding
        if fields is None:
            count = self._stream.skip(stored)
        else:
            fields[member.field] = data = self._stream.read(member.size)
            count = len(data)
            if padding:
                count += len(self._stream.read(padding))
        if count < stored:
            self._members.fail_as_cut(member.offset)

    def _member(self) -> _Member | None:
        """Advance to the data of the next member that belongs to a record; return None at the end."""
        while (found := self._members.next()) is not None:
            header = found.header
            if header.kind in _REFUSED:
                what, advice = _REFUSED[header.kind]
                self._fail(found.offset, f"{header.name} is {what}; {advice}")
            match = None if header.kind == DIRECTORY or _META.match(header.name) else _NAME.fullmatch(header.name)
            if match:
                return _Member(
                    key=match[1],
                    field=match[2].lower(),
                    size=header.size,
                    offset=found.offset,
                    archive=found.archive,
                )
            self._members.skip(found)
        return None

    def _too_large(self, offset: int) -> NoReturn:
        self._fail(
            offset,
            f"its files and their names have more than {self._largest} bytes, the most of a record; raise "
            "largest_record if they are meant to be so large",
        )

    def _fail(self, offset: int, problem: str, cause: Exception | None = None) -> NoReturn:
        raise DataError(f"{place(self._stream.name, self.number, offset)}: {problem}") from cause
