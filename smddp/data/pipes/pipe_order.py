"""The order of training data from pipes: the order of arrival, cut into global batches."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from smddp.data.formats.record import RawRecord
from smddp.data.order.data_order import Partition
from smddp.data.order.sampler import refuse_other_order, saved_epoch
from smddp.data.pipes.dataset import PipeDataset
from smddp.data.shards.prefetch import prefetch
from smddp.display_text import counted
from smddp.errors import DataError
from smddp.whole_numbers import as_whole_number, as_whole_numbers

logger = logging.getLogger(__name__)

_AHEAD = 4  # micro-batches
_UNKNOWN = 2**62  # records: an epoch ends when its pipe does


class PipeOrder:
    """The training data of one rank, from a channel in Pipe mode, resumable on any number of hosts.

    It is a batch sampler whose indices are whole records, which a loader's workers decode:

        dataset = PipeDataset(job.inputs["training"], format="jsonl", decode=decode)
        DataLoader(dataset.decoder, batch_sampler=PipeOrder(dataset, global_batch=256), num_workers=4)

    Epoch e is the content of pipe number e, in order; a ShuffleConfig shuffles the objects. If the channel is
    FullyReplicated, each rank takes its part of each global batch and skips the rest: any number of hosts sees the
    same batches. If it is sharded by host, each host's records are its part of the batch, and the number of hosts must
    stay the same. Records behind the last whole global batch are left out.

    A pipe cannot seek. A resume reads and drops the records of earlier steps, and logs their number of bytes.
    """

    def __init__(
        self,
        dataset: PipeDataset,
        *,
        global_batch: int,
        rank: int = 0,
        world_size: int = 1,
        local_world_size: int = 1,
        accumulate: int = 1,
    ) -> None:
        """Describe the order; nothing is opened yet.

        Args:
            dataset: The channel.
            global_batch: Samples of an optimizer step, over all ranks and micro-batches.
            rank: This process's rank.
            world_size: The number of processes.
            local_world_size: The number of processes on this host.
            accumulate: Micro-batches of an optimizer step on each rank.

        Raises:
            ValueError: The numbers do not fit each other, or several ranks would read one pipe.
        """
        global_batch, rank, world_size, accumulate = as_whole_numbers(
            global_batch=global_batch, rank=rank, world_size=world_size, accumulate=accumulate
        )
        if local_world_size != 1:
            raise ValueError(
                f"{local_world_size} ranks of this host would read the pipes of the channel {dataset.channel.name!r}, "
                "and each record would reach but one of them: run one process a host, or give the job "
                'input_mode="FastFile" or "File"'
            )
        records = dataset.records
        self._sharded = dataset.channel.sharded_by_host and world_size > 1
        if self._sharded and records is None:
            raise ValueError(
                f"the channel {dataset.channel.name!r} is ShardedByS3Key: give records, the number that the host with "
                "the fewest has, so that all hosts take as many steps; or distribute it FullyReplicated"
            )
        total = _UNKNOWN if records is None else records * (world_size if self._sharded else 1)
        self._cut = Partition(size=total, global_batch=global_batch, world_size=world_size, accumulate=accumulate)
        if rank == 0 and records is not None and self._cut.end < total:
            logger.info(
                "an epoch is %s of %d records; the last %d are left out (%d records in all)",
                counted(self._cut.steps, "step"),
                global_batch,
                total - self._cut.end,
                total,
            )
        self.dataset = dataset
        self.global_batch = global_batch
        self.rank = rank
        self.records = records
        self._epoch = 0
        self._consumed = 0
        self._given = 0  # steps of the epoch whose micro-batches were all yielded
        self._next_pipe = 0

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._epoch

    @property
    def consumed(self) -> int:
        """Samples of this epoch consumed by optimizer steps, over all ranks."""
        return self._consumed

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in a whole epoch; None if the number of records is unknown."""
        return None if self.records is None else self._cut.steps

    def __len__(self) -> int:
        """Return the number of this rank's micro-batches left in the epoch.

        Raises:
            TypeError: The number of records is unknown.
        """
        if self.steps_per_epoch is None:
            raise TypeError("how many steps an epoch has is not known before the end of its pipe; give records")
        return (self.steps_per_epoch - self._consumed // self.global_batch) * self._cut.accumulate

    def __iter__(self) -> Iterator[list[RawRecord]]:
        """Return an iterator over this rank's micro-batches, from the first step not taken to the end of the epoch.

        A thread reads them ahead, and ends with the iterator.

        Raises:
            DataError: A record cannot be read, or the pipe has fewer records than `records` or than one step.
            ValueError: The epoch's pipe was read already.
        """
        if self._epoch < self._next_pipe:
            raise ValueError(
                f"the pipe of epoch {self._epoch} was read in this process already, and can't be read again: continue "
                f"with epoch {self._next_pipe}, or start the job again"
            )
        self._given = done = self._consumed // self.global_batch
        return self._count(prefetch(lambda is_abandoned: self._produce(done, is_abandoned), ahead=_AHEAD))

    def whole_epoch(self) -> Iterator[list[RawRecord]]:
        """Raise ValueError: a pipe can be read once."""
        raise ValueError(
            f"the training data come through the pipe of the channel {self.dataset.channel.name!r}, which can be read "
            "once, and training reads it: evaluate on a channel of files, by trainer.evaluation_loader"
        )

    def start_epoch(self, epoch: int) -> None:
        """Begin this epoch, or continue it if it is the current one.

        Raises:
            ValueError: The epoch is negative.
        """
        epoch = as_whole_number("epoch", epoch)
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}: epochs are counted from 0")
        if epoch != self._epoch:
            self._epoch, self._consumed, self._given = epoch, 0, 0

    def advance(self) -> None:
        """Count one optimizer step as taken.

        Raises:
            ValueError: The loader has not yielded the step's batches.
        """
        if self._consumed >= self._given * self.global_batch:
            raise ValueError(
                f"a step more was taken in epoch {self._epoch} than batches were given out: {self._given} of "
                f"{self.global_batch} samples; at the end call start_epoch({self._epoch + 1})"
            )
        self._consumed += self.global_batch

    def loss_weight(self, micro_batch: int) -> float:  # noqa: ARG002  # all batches are whole
        """Return the factor for a micro-batch's mean loss: always 1.0."""
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, the same on every rank: a small JSON object."""
        return {**self._identity(), "epoch": self._epoch, "consumed": self._consumed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position from `state_dict`.

        Raises:
            ValueError: The position does not fit this order.
        """
        refuse_other_order(state, self._identity())
        epoch, consumed = saved_epoch(state), state.get("consumed")
        if type(consumed) is not int or consumed % self.global_batch or not 0 <= consumed <= self._cut.end:
            raise ValueError(
                f"the saved position in the data has consumed={consumed!r}: it must be a multiple of the global "
                f"batch, {self.global_batch}, of at most the epoch's records"
            )
        self._epoch, self._consumed, self._given = epoch, consumed, consumed // self.global_batch

    def _identity(self) -> dict[str, Any]:
        """Return the values that decide the order, among them the number of hosts if the channel is sharded by host."""
        return {
            "pipe": 1,
            "channel": self.dataset.channel.name,
            "global_batch": self.global_batch,
            "sharded_over": self._cut.world_size if self._sharded else None,
            "records": self.records,
        }

    def _count(self, micro_batches: Iterator[list[RawRecord]]) -> Iterator[list[RawRecord]]:
        epoch = self._epoch
        for number, micro_batch in enumerate(micro_batches, start=1):
            if number % self._cut.accumulate == 0 and epoch == self._epoch:
                self._given += 1
            yield micro_batch

    def _produce(self, done: int, is_abandoned: Callable[[], bool]) -> Generator[list[RawRecord], None, None]:
        """Yield micro-batches from step ``done`` on; open and close the pipes of earlier epochs first."""
        epoch = self._epoch
        while self._next_pipe < epoch:
            self.dataset.open(self._next_pipe, is_abandoned=is_abandoned).close()
            self._next_pipe += 1
        self._next_pipe = epoch + 1
        with contextlib.closing(self.dataset.open(epoch, is_abandoned=is_abandoned)) as reader:
            size = self.global_batch // self._cut.shares
            ranks = 1 if self._sharded else self._cut.world_size  # ranks that share this pipe's records
            mine = 0 if self._sharded else self.rank
            for _ in range(done * size * self._cut.accumulate * ranks):
                if reader.skip() is None:
                    raise self._too_few(reader.number)
            if done:
                logger.info(
                    "resumed in epoch %d: %s (%d bytes) came through the pipe again and were dropped",
                    epoch,
                    counted(reader.number, "record"),
                    reader.offset,
                )
            for number in range(done, self._cut.steps):
                step = []
                for share in range(self._cut.accumulate * ranks):
                    records = [reader.read() if share % ranks == mine else reader.skip() for _ in range(size)]
                    if records[-1] is None:
                        if not is_abandoned():
                            self._check_end(reader.number, steps=number)
                        return
                    if share % ranks == mine:
                        step.append(records)
                yield from step  # type: ignore[misc]  # all are records: this rank's shares hold no skipped ones

    def _check_end(self, found: int, *, steps: int) -> None:
        """Raise DataError if the pipe may not end after ``steps`` whole steps; log the records left out."""
        if self.records is not None:
            raise self._too_few(found)
        pipe = self.dataset.channel.pipe(self._epoch)
        if steps == 0:
            raise DataError(
                f"the pipe {pipe} ended after {found} records, and a step takes global_batch = {self.global_batch}: "
                f"{f'choose a global_batch of at most {found}, or ' if found else ''}see whether all objects of the "
                "channel came"
            )
        left = found - steps * self.global_batch
        if left and self.rank == 0:
            logger.info(
                "the pipe %s sent %s: %s of %d, and the last %d are left out",
                pipe,
                counted(found, "record"),
                counted(steps, "step"),
                self.global_batch,
                left,
            )

    def _too_few(self, found: int) -> DataError:
        said = "the saved position is behind them" if self.records is None else f"records={self.records} was said"
        return DataError(
            f"the pipe {self.dataset.channel.pipe(self._epoch)} ended after {found} records, but {said}: did the data "
            "change, or did the job end?"
        )
