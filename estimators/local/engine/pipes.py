"""Serves the channels in Pipe mode: named pipes, one an epoch, through which the objects come one after the other.

Of an augmented manifest, they are those that its lines name, and with them the values that its lines have.

A channel's pipes are ``/opt/ml/input/data/<channel>_0``, ``_1``, … The next one is there before its predecessor ends,
and a program that closes one early has the next one a moment later. Nothing is kept on disk. Writing never waits for a
program that does not read: all is given up when the hosts have ended. An object that can't be read, or a defect of
ours, ends the job; the pipe stays open until the program is gone, for a closed one would look like the end of the data.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import select
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, NoReturn

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.augmented_manifest import Line, read_manifest
from estimators.local.engine.channels import channel_files, receivers, share_out
from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.hosts import Host
from estimators.local.engine.job_request import InputChannel
from estimators.local.engine.objects import S3Uri, explaining, read_object

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.01
"""Between two looks whether a program has opened a pipe: an open for writing can't be waited for and given up."""
_CLOSE_SECONDS = 5.0
"""Seconds to wait for a thread that waits for S3; it ends by itself later, and holds up nothing."""
_PIPE_BYTES = 1 << 20
_MAGIC = 0xCED7230A
_LARGEST_RECORD = (1 << 29) - 1
_GZIP = 16 + zlib.MAX_WBITS


class Pipes:
    """The pipes of one channel, on all hosts that get it.

    Args:
        s3: A client.
        channel: The channel.
        hosts: All hosts of the job.
        trees: Every host's /opt/ml.
        failed: Is told, once, why the data can't be sent on.
    """

    def __init__(
        self,
        s3: S3Client,
        channel: InputChannel,
        hosts: Sequence[Host],
        trees: Mapping[str, HostTree],
        *,
        failed: Callable[[str], None],
    ) -> None:
        self._s3 = s3
        self._channel = channel
        self._failed = failed
        self._trees = [trees[host.name] for host in receivers(channel, hosts)]
        self._files: dict[str, S3Uri] = {}
        self._lines: list[Line] = []
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"pipe {channel.name} {tree.root}", daemon=True)
            for number, tree in enumerate(self._trees)
        ]

    def open(self) -> None:
        """Make the first epoch's pipes, and serve them and those that follow.

        Raises:
            FailedJobError: If there is no object, or the augmented manifest can't be read.
        """
        if self._channel.attributes:
            self._lines = read_manifest(self._s3, self._channel)
        else:
            self._files = channel_files(self._s3, self._channel)
        for tree, thread in zip(self._trees, self._threads, strict=True):
            tree.make_pipe(self._path(0))
            thread.start()

    def close(self) -> None:
        """Stop. Call it once no program reads any more."""
        self._closing.set()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0, deadline - time.monotonic()))

    def _path(self, epoch: int) -> PurePath:
        return self._channel.path.with_name(f"{self._channel.path.name}_{epoch}")

    def _serve(self, number: int) -> None:
        """Send epoch after epoch to one host."""
        with contextlib.suppress(_ClosedError):
            for epoch in itertools.count():
                self._serve_epoch(number, epoch)

    def _serve_epoch(self, number: int, epoch: int) -> None:
        tree, path, pipe = self._trees[number], self._path(epoch), None
        try:
            pipe = self._await_reader(tree, path)
            with contextlib.suppress(BrokenPipeError):  # the program has enough of this epoch
                for part in self._share(number, epoch):
                    for piece in self._content(part) if isinstance(part, S3Uri) else self._value(part):
                        self._write(pipe, piece)
            self._require_open()
            tree.make_pipe(self._path(epoch + 1))
            tree.remove(path)  # before the end is seen: who opened it once more would wait for ever
        except _ClosedError:
            raise
        except Exception as error:
            self._give_up(error)
        finally:
            if pipe is not None:
                os.close(pipe)

    def _give_up(self, error: Exception) -> NoReturn:
        """End the job, and wait for that."""
        self._require_open()
        if isinstance(error, FailedJobError):
            self._failed(str(error))
        elif isinstance(error, OSError):
            self._failed(f'ClientError: channel "{self._channel.name}": its pipe can not be served: {error}')
        else:
            logger.error("channel %s can't be sent, by a defect of the platform", self._channel.name, exc_info=error)
            self._failed(f'InternalServerError: channel "{self._channel.name}": {type(error).__name__}: {error}')
        self._closing.wait()
        raise _ClosedError from error

    def _require_open(self) -> None:
        """Raise if closed: the directory and the job then belong to an attempt without this thread."""
        if self._closing.is_set():
            raise _ClosedError

    def _await_reader(self, tree: HostTree, path: PurePath) -> int:
        while not self._closing.wait(_LOOK_SECONDS):
            try:
                pipe = tree.open_pipe(path)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nobody has opened it for reading
                    continue
                raise
            with contextlib.suppress(OSError):  # more than the user's limit on pipes: it stays as small as it is
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            return pipe
        raise _ClosedError

    def _share(self, number: int, epoch: int) -> Iterator[S3Uri | bytes]:
        """Yield what one host gets in an epoch: objects, and the values of lines."""
        hosts = len(self._trees)
        if self._lines:
            for line in share_out(self._channel, range(len(self._lines)), hosts, epoch=epoch)[number]:
                yield from self._lines[line]
        else:
            for name in share_out(self._channel, self._files, hosts, epoch=epoch)[number]:
                yield self._files[name]

    def _value(self, value: bytes) -> Iterator[bytes]:
        """Yield what is sent of a value."""
        return _record(len(value), [value], self._channel.uri) if self._channel.recordio else iter([value])

    def _content(self, uri: S3Uri) -> Iterator[bytes]:
        """Yield what is sent of an object."""
        with explaining(f'Data can not be sent: channel "{self._channel.name}"', uri):
            size, pieces = read_object(self._s3, uri)
            if self._channel.gzip:
                yield from _decompress(pieces, uri)
            elif self._channel.recordio:
                yield from _record(size, pieces, uri)
            else:
                yield from pieces

    def _write(self, pipe: int, data: bytes) -> None:
        rest = memoryview(data)
        room = select.poll()
        room.register(pipe, select.POLLOUT)
        while rest:
            self._require_open()
            try:
                rest = rest[os.write(pipe, rest) :]
            except BlockingIOError:
                room.poll(100)


class _ClosedError(Exception):
    """The hosts have ended."""


def _record(size: int, pieces: Iterable[bytes], uri: S3Uri) -> Iterator[bytes]:
    """Yield a record of MXNet's RecordIO: a header, and the data, filled up to a multiple of 4 bytes."""
    if size > _LARGEST_RECORD:
        raise FailedJobError(
            f"ClientError: {uri} has {size} bytes; a RecordIO record holds at most {_LARGEST_RECORD}: cut the object up"
        )
    yield struct.pack("<II", _MAGIC, size)
    yield from pieces
    yield bytes(-size % 4)


def _decompress(pieces: Iterator[bytes], uri: S3Uri) -> Iterator[bytes]:
    """Yield the content of a gzip file of any number of members, in pieces that a small file can't blow up."""
    inflate, data = zlib.decompressobj(_GZIP), b""
    try:
        for piece in pieces:
            rest = piece
            while rest or (len(data) == _PIPE_BYTES and not inflate.eof):
                if inflate.eof:
                    inflate = zlib.decompressobj(_GZIP)
                data = inflate.decompress(rest, _PIPE_BYTES)
                rest = inflate.unconsumed_tail or inflate.unused_data
                yield data
        whole = inflate.eof
    except zlib.error as error:
        raise FailedJobError(
            f"ClientError: {uri} is no gzip file ({error}), but the channel has CompressionType Gzip"
        ) from error
    if not whole:
        raise FailedJobError(f"ClientError: {uri} is a gzip file that is cut off; upload it again")
