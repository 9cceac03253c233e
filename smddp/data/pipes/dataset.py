"""The records of a channel in Pipe mode, as they come through its pipes."""

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
"""What comes through the pipes: lines of JSON, tar files one after the other, or RecordIO records."""

_READERS = {"jsonl": JsonLinesReader, "tar": TarReader, "recordio": RecordIOReader}


class PipeDataset:
    """What a channel's pipes send; to train on it, give a DataLoader its `decoder` and a `PipeOrder`.

    A record of JSON lines is the line's object; one of a tar file what its members with the same stem hold; one of
    RecordIO is ``{"__key__": "17", "record": b"..."}``.

    Examples:
        The Trainer does that by itself::

            data = PipeDataset(job.inputs["training"], format="jsonl", decode=decode)
            loader = trainer.loader(data, batch_size=256, num_workers=1)
    """

    def __init__(
        self,
        channel: Input,
        *,
        format: Format | None = None,  # noqa: A002  # what it is called everywhere
        decode: Decode | None = None,
        records: int | None = None,
        largest_record: int = LARGEST_RECORD,
        wait_seconds: float = 600,
    ) -> None:
        """Use a channel. Its pipes are opened when they are read.

        Args:
            channel: ``job.inputs["training"]``.
            format: What is in the objects; None if the platform makes RecordIO of them.
            decode: Makes a sample of a record; it runs in the loader's workers. None gives the record itself.
            records: How many come in an epoch, where that is known: so its number of steps is known before its end.
                Of a channel that is sharded by host it is a must, and that of the host with the fewest: else ranks
                would end their epochs after different numbers of steps, and wait for each other for ever.
            largest_record: The most bytes of a record; what is larger is an error and never read into memory.
            wait_seconds: How long a pipe may take to come, and then to send anything.

        Raises:
            JobError: The channel is a directory.
            ValueError: The format is not what comes.
        """
        channel.pipe(0)  # or it is a directory, and says so
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
        """Open the pipe of an epoch, which can be done once.

        Args:
            epoch: Which pipe, from 0.
            is_abandoned: Whether the records are no longer wanted.

        Raises:
            DataError: It does not come.
        """
        path = self.channel.pipe(epoch)
        pipe = open_pipe(path, wait_seconds=self.wait_seconds, is_abandoned=is_abandoned)
        reader = _READERS[self._format](pipe, name=path.name, largest_record=self._largest_record)
        return cast("RecordReader", reader)
