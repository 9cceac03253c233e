"""What the kernel is told, request by request: a socket that keeps messages apart stands for /dev/fuse."""

from __future__ import annotations

import errno
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from estimators.local.engine.fast_file import protocol
from estimators.local.engine.fast_file.mount import Mount
from estimators.local.engine.fast_file.protocol import Operation
from estimators.local.engine.fast_file.reading import Reading
from estimators.local.engine.fast_file.tree import Tree
from estimators.local.engine.objects import S3Object, S3Uri

NAMES = [f"file-{number:04}" for number in range(1000)]


class Kernel:
    """The other end."""

    def __init__(self) -> None:
        self.end, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.device = device.detach()
        self.end.settimeout(5)
        self._unique = 0

    def ask(self, operation: int, node: int = protocol.ROOT, body: bytes = b"") -> tuple[int, bytes]:
        """The errno and the body of the reply."""
        self.send(operation, node, body)
        reply = self.end.recv(1 << 20)
        size, error, unique = struct.unpack_from("=IiQ", reply)
        assert (size, unique) == (len(reply), self._unique)
        return -error, reply[16:]

    def send(self, operation: int, node: int = protocol.ROOT, body: bytes = b"") -> None:
        self._unique += 1
        self.end.send(struct.pack("=IIQQIIIHH", 40 + len(body), operation, self._unique, node, 0, 0, 0, 0, 0) + body)

    def look_up(self, name: str, node: int = protocol.ROOT) -> int:
        error, body = self.ask(Operation.LOOKUP, node, name.encode() + b"\0")
        assert not error
        number: int = struct.unpack_from("=Q", body)[0]
        return number


def an_object(name: str, size: int = 5) -> S3Object:
    return S3Object(uri=S3Uri(bucket="bucket", key=name), size=size, etag="tag", modified=1_700_000_000)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.end.close()


@pytest.fixture
def mount(kernel: Kernel) -> Iterator[Mount]:
    tree = Tree({name: an_object(name) for name in ["sub/deep/leaf", *NAMES]})
    reading = Reading(None, failed=lambda _: None)  # type: ignore[arg-type]
    mount = Mount(kernel.device, tree, reading, name="fast file test")
    mount.start()
    yield mount
    if mount._thread.is_alive():
        mount.close()
    reading.close()


def listed(kernel: Kernel, node: int, size: int) -> Iterator[tuple[int, str]]:
    offset = 0
    while True:
        error, body = kernel.ask(Operation.READDIR, node, struct.pack("=QQIIQII", 0, offset, size, 0, 0, 0, 0))
        assert not error
        assert len(body) <= size
        if not body:
            return
        while body:
            number, offset, length, kind = struct.unpack_from("=QQII", body)
            yield kind, body[24 : 24 + length].decode()
            assert number
            body = body[24 + length + -(24 + length) % 8 :]


@pytest.mark.parametrize("size", [64, 4096, 1 << 17])
def test_a_directory_is_listed_in_pieces_of_any_size(kernel: Kernel, mount: Mount, size: int) -> None:
    found = list(listed(kernel, protocol.ROOT, size))
    assert sorted(found) == sorted([(4, "sub"), *((8, name) for name in NAMES)])
    sub = kernel.look_up("sub")
    assert list(listed(kernel, sub, size)) == [(4, "deep")]
    assert list(listed(kernel, kernel.look_up("deep", sub), size)) == [(8, "leaf")]


def test_a_file_has_its_size_and_time_and_nobody_may_write_it(kernel: Kernel, mount: Mount) -> None:
    _, body = kernel.ask(Operation.GETATTR, kernel.look_up("file-0007"), bytes(16))
    _, size, _, _, modified, _ = struct.unpack_from("=6Q", body, 16)
    (mode,) = struct.unpack_from("=I", body, 16 + 48 + 12)
    assert (size, modified, oct(mode)) == (5, 1_700_000_000, "0o100444")


def test_the_start_offers_no_more_than_the_kernel_knows(kernel: Kernel, mount: Mount) -> None:
    error, body = kernel.ask(Operation.INIT, 0, struct.pack("=IIII", 7, 45, 131072, 0b1) + bytes(48))
    assert (error, len(body)) == (0, 64)
    assert struct.unpack_from("=IIII", body) == (7, 31, 131072, 0b1)


@pytest.mark.parametrize(
    ("request_of", "error"),
    [
        (lambda: (Operation.LOOKUP, protocol.ROOT, b"none\0"), errno.ENOENT),
        (lambda: (Operation.GETATTR, 10**6, bytes(16)), errno.ESTALE),
        (lambda: (Operation.READ, 2, struct.pack("=QQIIQII", 99, 0, 10, 0, 0, 0, 0)), errno.EBADF),
        (lambda: (Operation.OPEN, protocol.ROOT, bytes(8)), errno.ENOSYS),
        (lambda: (4095, protocol.ROOT, b""), errno.ENOSYS),
    ],
)
def test_what_makes_no_sense_is_answered(
    kernel: Kernel, mount: Mount, request_of: Callable[[], tuple[int, int, bytes]], error: int
) -> None:
    assert kernel.ask(*request_of()) == (error, b"")


def test_what_wants_no_reply_gets_none(kernel: Kernel, mount: Mount) -> None:
    for operation in protocol.UNANSWERED:
        kernel.send(operation, 2, bytes(8))
    assert kernel.ask(Operation.STATFS)[0] == 0  # its reply is the first


def test_a_defect_of_ours_is_an_error_and_no_wait_for_ever(
    kernel: Kernel, mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    _, body = kernel.ask(Operation.OPEN, kernel.look_up("file-0000"), bytes(8))
    (handle,) = struct.unpack_from("=Q", body)
    read: Any = struct.pack("=QQIIQII", handle, 0, 10, 0, 0, 0, 0)
    assert kernel.ask(Operation.READ, 2, read) == (errno.EIO, b"")  # there is no client at all
    assert "by a defect of the platform" in caplog.text
    assert kernel.ask(Operation.RELEASE, 2, bytes(24)) == (0, b"")


def test_closing_ends_its_threads_and_closes_the_device(kernel: Kernel, mount: Mount) -> None:
    assert kernel.ask(Operation.STATFS)[0] == 0
    mount.close()
    assert kernel.end.recv(1) == b""
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fast file test")]
