"""Iterate the members of an untrusted tar file, in little memory whatever its sizes say.

It replaces tarfile, which reads headers of any size into memory, takes a truncated file for a complete one, and seeks
backwards for a negative size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

from smddp.storage.byte_stream import ByteStream
from smddp.storage.tar_header import BLOCK, BadHeaderError, Header, extension_fields

_LARGEST_EXTENSION = 1 << 20  # bytes of a member's long names and pax fields, together

_PIECE = 1 << 20
_END = bytes(BLOCK)


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
                    extended.update(extension_fields(header, self._extension(header.size, offset)))
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
