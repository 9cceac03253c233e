"""Serves the channels in Pipe mode: one named pipe for each epoch, which sends the objects one after the other.

For an augmented manifest, the pipe sends the objects and the values of its lines. A channel's pipes are
``/opt/ml/input/data/<channel>_0``, ``_1``, … Nothing is stored on disk.

1. The next pipe exists before the current one ends. A program that closes a pipe early finds the next one soon after.
2. A program that does not read blocks nothing: once the hosts have ended, `close` ends all writing.
3. An object that can't be read, or a defect of the platform, ends the job. The pipe stays open until the program is
   gone, because a closed pipe looks like the end of the data.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import logging
import os
import select
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NoReturn

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.instance_groups import Host
from estimators.local.engine.transfers.channels import InputChannel, channel_files, receivers, share_out
from estimators.local.engine.transfers.objects import S3Uri, explaining, read_object
from smddp.display_text import shown_names

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.01
"""Between two attempts to open a pipe for writing: a blocking open could not be cancelled."""
_CLOSE_SECONDS = 5.0
"""How long `close` waits for threads that wait for S3; they end by themselves later."""
_PIPE_BYTES = 1 << 20
_MAGIC = 0xCED7230A
_LARGEST_RECORD = (1 << 29) - 1
_GZIP = 16 + zlib.MAX_WBITS


class Pipes:
    """The pipes of one channel on all hosts that get it; ``failed`` is called with the reason if sending fails."""

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
        self._lines: list[_Line] = []
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"pipe {channel.name} {tree.root}", daemon=True)
            for number, tree in enumerate(self._trees)
        ]

    def open(self) -> None:
        """Make the first epoch's pipes, and serve all epochs in the background.

        Raise FailedJobError if there is no object, or the augmented manifest can't be read.
        """
        if self._channel.attributes:
            self._lines = _read_manifest(self._s3, self._channel)
        else:
            self._files = channel_files(self._s3, self._channel)
        for tree, thread in zip(self._trees, self._threads, strict=True):
            tree.make_pipe(self._path(0))
            thread.start()

    def close(self) -> None:
        """Stop sending. Call it only when no program reads any more."""
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
        # The hand-over between two epochs:
        # 1. Make the next epoch's pipe, which the program may open at once.
        # 2. Remove this epoch's name: a program that opened it again would wait for ever.
        # 3. Only then close this pipe, which the program reads as the end of the epoch.
        tree, path, pipe = self._trees[number], self._path(epoch), None
        try:
            pipe = self._await_reader(tree, path)
            with contextlib.suppress(BrokenPipeError):  # the program closed the pipe early
                for part in self._share(number, epoch):
                    for piece in self._content(part) if isinstance(part, S3Uri) else self._value(part):
                        self._write(pipe, piece)
            self._require_open()
            tree.make_pipe(self._path(epoch + 1))
            tree.remove(path)
        except _ClosedError:
            raise
        except Exception as error:
            self._give_up(error)
        finally:
            if pipe is not None:
                os.close(pipe)

    def _give_up(self, error: Exception) -> NoReturn:
        """End the job with the error, and wait for `close`."""
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
        """Raise if closed: the directory and the job may then belong to the next attempt."""
        if self._closing.is_set():
            raise _ClosedError

    def _await_reader(self, tree: HostTree, path: PurePath) -> int:
        while not self._closing.wait(_LOOK_SECONDS):
            try:
                pipe = tree.open_pipe(path)
            except OSError as error:
                if error.errno == errno.ENXIO:  # no reader yet
                    continue
                raise
            with contextlib.suppress(OSError):  # beyond the user's limit on pipes: it keeps its size
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            return pipe
        raise _ClosedError

    def _share(self, number: int, epoch: int) -> Iterator[S3Uri | bytes]:
        """Yield the objects and values of one host's epoch."""
        hosts = len(self._trees)
        if self._lines:
            for line in share_out(self._channel, range(len(self._lines)), hosts, epoch=epoch)[number]:
                yield from self._lines[line]
        else:
            for name in share_out(self._channel, self._files, hosts, epoch=epoch)[number]:
                yield self._files[name]

    def _value(self, value: bytes) -> Iterator[bytes]:
        """Yield a value as it is sent."""
        return _record(len(value), [value], self._channel.uri) if self._channel.recordio else iter([value])

    def _content(self, uri: S3Uri) -> Iterator[bytes]:
        """Yield an object as it is sent."""
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
    """Yield an MXNet RecordIO record: a header, and the data padded to a multiple of 4 bytes."""
    if size > _LARGEST_RECORD:
        raise FailedJobError(
            f"ClientError: {uri} has {size} bytes; a RecordIO record holds at most {_LARGEST_RECORD}: cut the object up"
        )
    yield struct.pack("<II", _MAGIC, size)
    yield from pieces
    yield bytes(-size % 4)


def _decompress(pieces: Iterator[bytes], uri: S3Uri) -> Iterator[bytes]:
    """Yield the content of a gzip file of any number of members, in pieces of at most `_PIPE_BYTES`."""
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


# Reads an augmented manifest: JSON Lines, one sample a line.
#
# An attribute whose name ends in ``-ref`` names an S3 object; any other attribute is the data itself. The format is in
# https://docs.aws.amazon.com/sagemaker/latest/dg/augmented-manifest.html. It does not say how text is sent: here as it
# is, without quotes. Every other value is sent as JSON.
_REFERENCE = "-ref"

_Line = tuple[S3Uri | bytes, ...]
"""The parts to send for one line, one for each attribute: an object, or a value as bytes."""


def _read_manifest(s3: S3Client, channel: InputChannel) -> list[_Line]:
    """Return the lines of a channel's augmented manifest, without empty ones.

    Raise FailedJobError if no line is left, or a line lacks an attribute of the channel.
    """
    with explaining(f'Data download failed: channel "{channel.name}"', channel.uri):
        _, pieces = read_object(s3, channel.uri)
        content = b"".join(pieces)
    lines = [
        _parse(text, f"line {number}", channel) for number, text in enumerate(content.split(b"\n"), 1) if text.strip()
    ]
    if not lines:
        raise _failure(channel, "the manifest has no lines; write one JSON object a line")
    return lines


def _parse(text: bytes, where: str, channel: InputChannel) -> _Line:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _failure(channel, f"{where} is no JSON ({error}); write one JSON object a line") from error
    if not isinstance(document, dict):
        raise _failure(
            channel, f"{where} is no JSON object but of the type {type(document).__name__}; write one a line"
        )
    if missing := [name for name in channel.attributes if name not in document]:
        has = shown_names(sorted(document), most=20) or "none"
        raise _failure(
            channel, f"{where} has no {', '.join(missing)}, which AttributeNames asks for; its attributes are {has}"
        )
    try:
        return tuple(_part(name, document[name]) for name in channel.attributes)
    except (ValueError, RecursionError) as error:
        raise _failure(channel, f"{where}: {error}") from error


def _part(name: str, value: Any) -> S3Uri | bytes:
    if name.endswith(_REFERENCE):
        uri = S3Uri.parse(str(value))
        if not uri.key:
            raise ValueError(f"{name} is {uri}, which is a bucket; name an object")
        uri.key.encode()  # every key is UTF-8
        return uri
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)).encode()


def _failure(channel: InputChannel, why: str) -> FailedJobError:
    return FailedJobError(f'ClientError: Data download failed: channel "{channel.name}": {channel.uri}: {why}')
