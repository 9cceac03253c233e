"""The records of a channel in Pipe mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast, get_args

from smddp.data.formats.json_lines import JsonLinesReader
from smddp.data.formats.record import LARGEST_RECORD, RecordReader
from smddp.data.formats.recordio import RecordIOReader
from smddp.data.formats.tar import TarReader
from smddp.data.pipes.fifo import open_pipe
from smddp.data.shards.dataset import Decode, RecordDecoder
from smddp.job.channels import Input

Format = Literal["jsonl", "tar", "recordio"]
"""The format of the objects: lines of JSON, tar files one after the other, or RecordIO records."""

_READERS = {"jsonl": JsonLinesReader, "tar": TarReader, "recordio": RecordIOReader}


class PipeDataset:
    """The records of a channel's pipes. To train on them, give a DataLoader its `decoder` and a `PipeOrder`.

    A record of JSON lines is the line's object; a record of a tar file is a dict of the members with the same stem; a
    record of RecordIO is ``{"__key__": "17", "record": b"..."}``.

    Examples:
        The Trainer builds the DataLoader itself::

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
        self.records = records
        self.wait_seconds = wait_seconds
        self._format = chosen
        self._largest_record = largest_record

    def open(self, epoch: int, *, is_abandoned: Callable[[], bool] = lambda: False) -> RecordReader:
        """Open the pipe of an epoch. Each pipe can be opened once.

        Args:
            epoch: The number of the pipe, from 0.
            is_abandoned: Returns True once the records are no longer wanted.

        Raises:
            DataError: The pipe does not appear in time.
        """
        path = self.channel.pipe(epoch)
        pipe = open_pipe(path, wait_seconds=self.wait_seconds, is_abandoned=is_abandoned)
        reader = _READERS[self._format](pipe, name=path.name, largest_record=self._largest_record)
        return cast("RecordReader", reader)
