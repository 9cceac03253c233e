"""Parse tar headers: POSIX ustar and pax, and GNU's long names and large sizes. Pure functions of bytes."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import NamedTuple

BLOCK = 512
"""Bytes of a header; a member's data are padded to a multiple of it."""
DIRECTORY = b"5"
HARD_LINK, SYMBOLIC_LINK, SPARSE = b"1", b"2", b"S"
CHARACTER_DEVICE, BLOCK_DEVICE, NAMED_PIPE = b"3", b"4", b"6"
_REGULAR = (b"0", b"\0", b"7")  # 7: a contiguous file, treated as a regular one
_WITHOUT_DATA = (HARD_LINK, SYMBOLIC_LINK, CHARACTER_DEVICE, BLOCK_DEVICE, NAMED_PIPE, DIRECTORY)
_GNU_LONG_NAME, _GNU_LONG_LINK = b"L", b"K"
_PAX, _PAX_GLOBAL = b"x", b"g"
_EXTENSIONS = (_GNU_LONG_NAME, _GNU_LONG_LINK, _PAX, _PAX_GLOBAL)
_KNOWN = (*_REGULAR, *_WITHOUT_DATA, *_EXTENSIONS, SPARSE)

_PAX_FIELD = re.compile(rb"([0-9]{1,7}) ([^=\n]+)=")


class BadHeaderError(Exception):
    """A block is not a valid header."""


class Header(NamedTuple):
    """The fields of a header that a reader needs. A tuple takes a third of a frozen dataclass's time to create."""

    name: str
    size: int
    """Bytes of data after the header, without padding."""
    kind: bytes
    """The type flag."""
    link: str = ""
    """The target of a link."""
    mode_field: bytes = b""

    @classmethod
    def of(cls, block: bytes) -> Header:
        """Parse a block; raise BadHeaderError if its checksum or a field is wrong."""
        if _number(block[148:156]) != _checksum(block):
            raise BadHeaderError("what stands in the place of a member's header is none (its checksum is wrong)")
        kind = block[156:157]
        name = _text(block[:100])
        if block[257:263] == b"ustar\0" and (prefix := _text(block[345:500])):
            name = f"{prefix}/{name}"
        if kind not in _KNOWN:
            raise BadHeaderError(f"the member {name!r} is of the unknown type {kind!r}")
        # Links, directories and devices have no data, whatever the size field says.
        size = 0 if kind in _WITHOUT_DATA else _number(block[124:136])
        link = _text(block[157:257]) if kind in (HARD_LINK, SYMBOLIC_LINK) else ""
        return cls(name=name, size=size, kind=kind, link=link, mode_field=block[100:108])

    @property
    def mode(self) -> int:
        """The file's mode bits; raise BadHeaderError if malformed."""
        return _number(self.mode_field)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.kind in _REGULAR

    @property
    def is_extension(self) -> bool:
        """Whether the data extend the next header, and are not a member's."""
        return self.kind in _EXTENSIONS

    def extended_by(self, fields: Mapping[str, str]) -> Header:
        """Return the header with the fields of its extensions applied; raise BadHeaderError for a malformed size."""
        if not fields and not self.name.endswith("/"):
            return self
        if any(name.startswith("GNU.sparse.") for name in fields):
            return self._replace(kind=SPARSE)
        name, size = fields.get("path", self.name), fields.get("size", str(self.size))
        if not (size.isascii() and size.isdigit() and len(size) < 20):
            raise BadHeaderError(f"the size of {name!r} is {size[:40]!r}")
        is_directory = self.kind == DIRECTORY or name.endswith("/")  # old tar marks directories so
        return self._replace(
            name=name,
            size=0 if is_directory else int(size),
            kind=DIRECTORY if is_directory else self.kind,
            link=fields.get("linkpath", self.link),
        )


def extension_fields(header: Header, body: bytes) -> dict[str, str]:
    """Return the fields that an extension sets for the next member, by their pax names.

    Raise BadHeaderError if it is malformed.
    """
    if header.kind == _GNU_LONG_NAME:
        return {"path": _text(body)}
    if header.kind == _GNU_LONG_LINK:
        return {"linkpath": _text(body)}
    return _pax_fields(body) if header.kind == _PAX else {}  # global fields apply to no single member


def _pax_fields(body: bytes) -> dict[str, str]:
    """Parse lines of ``length name=value``."""
    fields = {}
    position = 0
    while position < len(body):
        match = _PAX_FIELD.match(body, position)
        end = position + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(body) or body[end - 1 : end] != b"\n":
            raise BadHeaderError("the pax fields of a member are damaged")
        fields[_decoded(match[2])] = _decoded(body[match.end() : end - 1])
        position = end
    return fields


def _number(field: bytes) -> int:
    """Parse an octal number, or GNU's binary form for large numbers."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not digits:
        return 0
    try:
        if digits.isdigit():  # int() takes signs and underscores too
            return int(digits, 8)
    except ValueError:  # an 8 or a 9
        pass
    raise BadHeaderError(f"a number in the header is {field!r}")


def _checksum(block: bytes) -> int:
    """Return the sum of all bytes, with the checksum field counted as spaces.

    For so few bytes the low half of Adler-32 is their sum plus one, and ten times as fast as `sum`.
    """
    halves = (zlib.adler32(block[:256]) & 0xFFFF) + (zlib.adler32(block[256:]) & 0xFFFF) - 2
    return halves - sum(block[148:156]) + 8 * ord(" ")


def _text(field: bytes) -> str:
    return _decoded(field.split(b"\0", 1)[0])


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")
