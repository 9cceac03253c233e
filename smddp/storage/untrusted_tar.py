"""Read an untrusted tar file, or .tar.gz, member by member, in little memory whatever its sizes say.

It replaces tarfile, which reads headers of any size into memory, takes a truncated file for a complete one, and seeks
backwards for a negative size. Headers are POSIX ustar and pax, and GNU's long names and large sizes.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn, cast

from smddp.errors import DataError
from smddp.storage.byte_stream import ByteStream

BLOCK = 512
"""Bytes of a header; a member's data are padded to a multiple of it."""
_END = bytes(BLOCK)
_LARGEST_EXTENSION = 1 << 20  # bytes of a member's long names and pax fields, together
_PIECE = 1 << 20

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


def _extension_fields(header: Header, body: bytes) -> dict[str, str]:
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


class Member(NamedTuple):
    """A member, whose data are next in the stream."""

    header: Header
    offset: int
    """The byte at which its header begins, extensions included."""
    archive: int
    """The number of end marks before it: one stream may contain several tar files."""

    @property
    def stored(self) -> int:
        """Bytes of its data and padding."""
        return -(-self.header.size // BLOCK) * BLOCK


class TarMembers:
    """Iterates the members of one tar file, or of several in one stream."""

    def __init__(self, stream: ByteStream, fail: Callable[[int, str, Exception | None], NoReturn]) -> None:
        """Start at the stream's position, where a member begins; `fail(offset, problem, cause)` must raise."""
        self.is_complete = False
        """Whether the last block read is an end mark."""
        self._stream = stream
        self._fail = fail
        self._archive = 0

    def next(self) -> Member | None:
        """Go to the next member's data; None at the end. The previous member's data must have been read or skipped."""
        stream = self._stream
        offset = stream.offset
        extended: dict[str, str] = {}
        room = _LARGEST_EXTENSION
        while block := stream.read(BLOCK):
            if len(block) < BLOCK:
                self.fail_as_cut(offset)
            self.is_complete = block == _END
            if self.is_complete:
                self._archive += 1
                offset = stream.offset
                continue
            try:
                header = Header.of(block)
                if header.is_extension:
                    room -= header.size
                    if room < 0:
                        raise BadHeaderError(f"a member's name and attributes have over {_LARGEST_EXTENSION} bytes")
                    extended.update(_extension_fields(header, self._extension(header.size, offset)))
                    continue
                header = header.extended_by(extended)
            except BadHeaderError as error:
                self._fail(offset, f"{error}; the archive is damaged, or no tar file: write it anew", error)
            if stream.size is not None and header.size > stream.size - stream.offset:
                self.fail_as_cut(offset)
            return Member(header=header, offset=offset, archive=self._archive)
        if stream.size is not None and stream.offset < stream.size:
            self.fail_as_cut(offset)
        return None

    def skip(self, member: Member) -> None:
        """Skip the data of the current member."""
        if self._stream.skip(member.stored) < member.stored:
            self.fail_as_cut(member.offset)

    def pieces(self, member: Member) -> Iterator[bytes]:
        """Yield the data of the current member in pieces of at most a mebibyte."""
        left = member.header.size
        while left:
            piece = self._stream.read(min(left, _PIECE))
            if not piece:
                self.fail_as_cut(member.offset)
            left -= len(piece)
            yield piece
        padding = member.stored - member.header.size
        if self._stream.skip(padding) < padding:
            self.fail_as_cut(member.offset)

    def fail_as_cut(self, offset: int) -> NoReturn:
        """Raise the error for a member that begins at `offset` and is truncated."""
        self._fail(offset, "the archive is cut: it ends within a member; write it, or copy it, anew", None)

    def _extension(self, size: int, offset: int) -> bytes:
        body = self._stream.read(size)
        padding = -size % BLOCK
        if len(body) < size or self._stream.skip(padding) < padding:
            self.fail_as_cut(offset)
        return body


class BadArchiveError(Exception):
    """An archive is damaged, is no .tar.gz, or exceeds the size limit."""


@contextlib.contextmanager
def reading_tar_gz(archive: Path, origin: str, *, most: int | None = None) -> Iterator[TarMembers]:
    """Yield the members of an archive, verified only once `TarMembers.next` returns None: gzip's checksum is last.

    Raise BadArchiveError if it is malformed, or unpacks to more than `most` bytes: a small archive can unpack to a huge
    one.
    """

    def fail(offset: int, problem: str, cause: Exception | None) -> NoReturn:
        raise BadArchiveError(f"at byte {offset}, {problem}") from cause

    with archive.open("rb") as file:
        stream = ByteStream(cast(BinaryIO, _Unpacked(file, most)), name=origin)
        with contextlib.closing(stream):
            try:
                yield TarMembers(stream, fail)
            except (EOFError, zlib.error) as error:
                raise BadArchiveError(str(error)) from error
            except DataError as error:
                if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, gzip.BadGzipFile):
                    raise error.__cause__ from error
                raise BadArchiveError(str(error.__cause__)) from error


class _Unpacked(gzip.GzipFile):
    """The unpacked bytes of a file, up to a limit."""

    def __init__(self, file: BinaryIO, most: int | None) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._most = most

    def read(self, size: int | None = -1) -> bytes:
        piece = super().read(size)
        if self._most is not None and self.tell() > self._most:
            raise BadArchiveError(f"it unpacks to more than {self._most:,} bytes")
        return piece
