"""The kernel's FUSE protocol, as much of it as a read-only file system needs: requests in, replies out.

The kernel's own header is the reference: include/uapi/linux/fuse.h. A request is one read from /dev/fuse, a reply one
write to it. Speaking it directly takes no libfuse, and no `fusermount` with the set-user-ID bit.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

REQUEST_BYTES = 1 << 17
"""Room for the largest request: a read-only file system gets names and numbers alone."""
ROOT = 1
"""The number of the root's node."""

_MAJOR, _MINOR = 7, 31
_ASYNC_READ, _PARALLEL_DIRECTORIES, _MAX_PAGES = 1 << 0, 1 << 18, 1 << 22
_PAGES_AT_ONCE = 256
_FOREVER = 1 << 32
"""Seconds that the kernel may keep what it was told: nothing changes while a job runs."""
_KEEP_CACHE, _CACHE_DIRECTORY = 1 << 1, 1 << 3
_DIRECTORY, _FILE = 4, 8

_REQUEST = struct.Struct("=IIQQIIIHH")
_REPLY = struct.Struct("=IiQ")
_INIT_IN, _INIT_OUT = struct.Struct("=IIII"), struct.Struct("=IIIIHHIIHHI28x")
_OPEN_OUT = struct.Struct("=QII")
_READ_IN = struct.Struct("=QQI")
_HANDLE_IN = struct.Struct("=Q")
_ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
_ENTRY_OUT, _ATTRIBUTES_OUT = struct.Struct("=QQQQII"), struct.Struct("=QII")
_DIRECTORY_ENTRY = struct.Struct("=QQII")
_STATFS_OUT = struct.Struct("=QQQQQIIII24x")


class Operation(enum.IntEnum):
    """What the kernel asks for; anything else is answered with ENOSYS."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


UNANSWERED = (Operation.FORGET, Operation.BATCH_FORGET, Operation.INTERRUPT)


@dataclass(kw_only=True, slots=True, frozen=True)
class Request:
    """One request."""

    operation: int
    unique: int
    """Its number, which the reply carries."""
    node: int
    body: bytes

    @classmethod
    def parse(cls, data: bytes) -> Request:
        """Read a request as the kernel wrote it."""
        _, operation, unique, node, *_ = _REQUEST.unpack_from(data)
        return cls(operation=operation, unique=unique, node=node, body=data[_REQUEST.size :])

    @property
    def name(self) -> bytes:
        """The name that is looked up."""
        return self.body.rstrip(b"\0")

    @property
    def handle(self) -> int:
        """The open file or directory that is meant."""
        handle: int = _HANDLE_IN.unpack_from(self.body)[0]
        return handle

    @property
    def range(self) -> tuple[int, int]:
        """Of a read: the offset, and the most bytes."""
        _, offset, size = _READ_IN.unpack_from(self.body)
        return offset, size


@dataclass(kw_only=True, slots=True, frozen=True)
class Attributes:
    """What `stat` tells of a node."""

    node: int
    is_directory: bool
    size: int
    modified: int
    """Seconds since the epoch."""

    def pack(self) -> bytes:
        """As the kernel reads it."""
        mode, links = (0o40555, 2) if self.is_directory else (0o100444, 1)
        blocks = -(-self.size // 512)
        times = (self.modified,) * 3
        return _ATTRIBUTES.pack(self.node, self.size, blocks, *times, 0, 0, 0, mode, links, 0, 0, 0, 4096, 0)


def header(request: Request, size: int, *, error: int = 0) -> bytes:
    """What precedes a reply of ``size`` bytes, or is all of it: ``error`` is an errno."""
    return _REPLY.pack(_REPLY.size + size, -error, request.unique)


def started(request: Request) -> bytes:
    """The reply to INIT."""
    _, _, read_ahead, offered = _INIT_IN.unpack_from(request.body)
    flags = offered & (_ASYNC_READ | _PARALLEL_DIRECTORIES | _MAX_PAGES)
    return _INIT_OUT.pack(_MAJOR, _MINOR, read_ahead, flags, 64, 48, 4096, 1, _PAGES_AT_ONCE, 0, 0)


def entry(attributes: Attributes) -> bytes:
    """The reply to LOOKUP."""
    return _ENTRY_OUT.pack(attributes.node, 0, _FOREVER, _FOREVER, 0, 0) + attributes.pack()


def attributes_of(attributes: Attributes) -> bytes:
    """The reply to GETATTR."""
    return _ATTRIBUTES_OUT.pack(_FOREVER, 0, 0) + attributes.pack()


def opened(handle: int, *, is_directory: bool) -> bytes:
    """The reply to OPEN and OPENDIR: what was read once may be kept."""
    return _OPEN_OUT.pack(handle, _KEEP_CACHE | (_CACHE_DIRECTORY if is_directory else 0), 0)


def directory_entry(node: int, name: bytes, *, is_directory: bool, following: int) -> bytes:
    """One of the entries that the reply to READDIR consists of; ``following`` is the offset of the next."""
    kind = _DIRECTORY if is_directory else _FILE
    packed = _DIRECTORY_ENTRY.pack(node, following, len(name), kind) + name
    return packed + bytes(-len(packed) % 8)


def statistics(files: int) -> bytes:
    """The reply to STATFS."""
    return _STATFS_OUT.pack(0, 0, 0, files, 0, 4096, 255, 4096, 0)
