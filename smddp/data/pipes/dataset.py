"""The records of a channel in Pipe mode."""

from __future__ import annotations

import io
import os
import select
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast, get_args

from smddp.data.formats.json_lines import JsonLinesReader
from smddp.data.formats.record import LARGEST_RECORD, RecordReader
from smddp.data.formats.recordio import RecordIOReader
from smddp.data.formats.tar import TarReader
from smddp.data.shards.dataset import Decode, RecordDecoder
from smddp.errors import DataError
from smddp.job.channels import Input
from smddp.whole_numbers import as_whole_number

Format = Literal["jsonl", "tar", "recordio"]
"""The format of the objects: lines of JSON, tar files one after the other, or RecordIO records."""

_PIECE_SECONDS = 0.1
"""Seconds that a read waits before it checks `is_abandoned` again."""

_READERS = {"jsonl": JsonLinesReader, "tar": TarReader, "recordio": RecordIOReader}


class PipeDataset:
    """The records of a channel's pipes. To train on them, give a DataLoader its `decoder` and a `PipeOrder`.

    A record of JSON lines is the line's object; a record of a tar file is a dict of the members with the same stem; a
    record of RecordIO is ``{"__key__": "17", "record": b"..."}``.

    Examples:
        The Trainer builds the DataLoader itself:

            data = PipeDataset(job.inputs["training"], format="jsonl", decode=decode)
            loader = trainer.loader(data, batch_size=256, num_workers=1)
    """

    def __init__(
        self,
        channel: Input,
        *,
        format: Format | None = None,  # noqa: A002  # the usual name
        decode: Decode | None = None,
        records: int | None = None,
        largest_record: int = LARGEST_RECORD,
        wait_seconds: float = 600,
    ) -> None:
        """Use a channel. Its pipes are opened when they are read.

        Args:
            channel: ``job.inputs["training"]``.
            format: The format of the objects; None if the channel has RecordWrapperType RecordIO.
            decode: Turns a record into a sample, in the loader's workers. None returns the record itself.
            records: Records in an epoch, if known; it makes the number of steps known before the epoch's end. A
                channel that is sharded by host requires it: give the number of the host with the fewest records, or
                ranks would end their epochs after different numbers of steps and wait for each other for ever.
            largest_record: The most bytes of a record. A larger one is an error, and never read into memory.
            wait_seconds: Seconds a pipe may take to appear, and later to send anything.

        Raises:
            JobError: The channel is a directory.
            ValueError: The format is missing, or does not fit the channel.
        """
        channel.pipe(0)  # raises JobError if the channel is a directory
        if channel.recordio and format not in (None, "recordio"):
            raise ValueError(
                f"format is {format!r}, but the channel {channel.name!r} has RecordWrapperType RecordIO: each of its "
                "objects comes as one record; leave the format out, or the job's RecordWrapperType"
            )
        chosen = "recordio" if channel.recordio else format
        if chosen not in _READERS:
            raise ValueError(
                f"format is {format!r}: say what comes through the pipes of the channel {channel.name!r}, one of "
                f"{', '.join(map(repr, get_args(Format)))}"
            )
        self.channel = channel
        self.decoder = RecordDecoder(decode)
        self.records = None if records is None else as_whole_number("records", records)
        self.wait_seconds = wait_seconds
        self._format = chosen
        self._largest_record = as_whole_number("largest_record", largest_record)

    def open(self, epoch: int, *, is_abandoned: Callable[[], bool] = lambda: False) -> RecordReader:
        """Open the pipe of an epoch. Each pipe can be opened once.

        Args:
            epoch: The number of the pipe, from 0.
            is_abandoned: Returns True once the records are no longer wanted.

        Raises:
            DataError: The pipe does not appear in time.
        """
        path = self.channel.pipe(epoch)
        pipe = _open_pipe(path, wait_seconds=self.wait_seconds, is_abandoned=is_abandoned)
        reader = _READERS[self._format](pipe, name=path.name, largest_record=self._largest_record)
        return cast("RecordReader", reader)


def _open_pipe(path: Path, *, wait_seconds: float, is_abandoned: Callable[[], bool] = lambda: False) -> io.RawIOBase:
    """Wait until the platform's named pipe exists and has a writer, and open it.

    ``wait_seconds`` bounds the wait for the pipe, and later each wait for data; DataError ends both. Once
    ``is_abandoned`` returns True, reads return the end.
    """
    deadline = time.monotonic() + wait_seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise DataError(
                f"{path} did not come within {wait_seconds:.0f} s: is the channel in Pipe mode, and does nobody else "
                "read its pipes?"
            )
        if is_abandoned():
            return io.BytesIO()  # type: ignore[return-value]
        time.sleep(0.01)
    if not stat.S_ISFIFO(path.stat().st_mode):
        raise DataError(f"{path} is no named pipe, so this channel is not in Pipe mode: read it as files")
    return _Pipe(path, wait_seconds, is_abandoned)


class _Pipe(io.RawIOBase):
    def __init__(self, path: Path, wait_seconds: float, is_abandoned: Callable[[], bool]) -> None:
        super().__init__()
        self._path = path
        self._wait_seconds = wait_seconds
        self._is_abandoned = is_abandoned
        # Without O_NONBLOCK, open would wait for a writer without a bound. Reads wait with poll() instead, which does
        # not report the end of the pipe before a first writer opened it.
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._ready = select.poll()
        self._ready.register(self._pipe, select.POLLIN)
        try:
            self._wait()
        except DataError:
            self.close()
            raise

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._wait():
            return 0
        try:
            return os.readv(self._pipe, [buffer])
        except BlockingIOError as error:
            raise DataError(f"another process reads {self._path} too: each byte reaches but one of them") from error

    def close(self) -> None:
        if not self.closed:
            os.close(self._pipe)
        super().close()

    def _wait(self) -> bool:
        """Wait for data or the end, at most `wait_seconds`; return False if the records are no longer wanted."""
        deadline = time.monotonic() + self._wait_seconds
        while not self._ready.poll(_PIECE_SECONDS * 1000):
            if self._is_abandoned():
                return False
            if time.monotonic() > deadline:
                raise DataError(
                    f"nothing came through {self._path} for {self._wait_seconds:.0f} s; see the platform's log, or "
                    "raise wait_seconds"
                )
        return True
