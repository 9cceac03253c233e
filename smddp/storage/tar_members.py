"""From header to header of a tar file that nobody vouches for, in little memory, whatever it says of its sizes.

A reader of our own, because tarfile reads headers of any size into memory, takes a cut file for its end, and goes back
in the file where a size is negative.
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
    """A member whose data come next in the stream."""

    header: Header
    offset: int
    """The byte at which it begins, with the extensions of its header."""
    archive: int
    """Counts the ends of archives before it: tar files may follow each other in one stream."""

    @property
    def stored(self) -> int:
        """Bytes of its data with the padding after them."""
        return -(-self.header.size // BLOCK) * BLOCK


class TarMembers:
    """Goes through the members of a tar file, or of several one after the other."""

    def __init__(self, stream: ByteStream, fail: Callable[[int, str, Exception | None], NoReturn]) -> None:
        """Begin where the stream is.

        Args:
            stream: The archive; a member begins there.
            fail: Raises an error: that at this byte there is this problem, with this cause.
        """
        self.is_complete = False
        """Whether the last that was read is the mark at the end of an archive."""
        self._stream = stream
        self._fail = fail
        self._archive = 0

    def next(self) -> Member | None:
        """Go to the data of the next member; None at the end. The data of the one before were read, or skipped."""
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
        """Pass over the data of a member, that come next."""
        if self._stream.skip(member.stored) < member.stored:
            self.fail_as_cut(member.offset)

    def pieces(self, member: Member) -> Iterator[bytes]:
        """Give the data of a member, that come next, in pieces of at most a mebibyte."""
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
        """Raise an error: the member that begins there does not end."""
        self._fail(offset, "the archive is cut: it ends within a member; write it, or copy it, anew", None)

    def _extension(self, size: int, offset: int) -> bytes:
        body = self._stream.read(size)
        padding = -size % BLOCK
        if len(body) < size or self._stream.skip(padding) < padding:
            self.fail_as_cut(offset)
        return body
