"""Batch samplers whose order does not depend on how many processes share the work.

The global batch is the constant. An epoch is a sequence of positions; optimizer step s takes the s-th run of
``global_batch`` positions; micro-batch m of rank r is a fixed piece of that run; and the sample at a position is a pure
function of seed, epoch and position. So any number of ranks sees the same global batches, and a run that stopped in
mid-epoch continues at the very next sample, with any number of ranks.

They are batch samplers for ``torch.utils.data.DataLoader(dataset, batch_sampler=...)``. They know sizes and indices,
never the data.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from smddp.data.order.data_order import ALGORITHM, MicroBatches, Partition, Permutation, Tail
from smddp.display_text import counted
from smddp.whole_numbers import as_whole_number, as_whole_numbers

logger = logging.getLogger(__name__)

_MEANING = {
    "global_batch": " (the batch_size of trainer.loader)",
    "size": " (the number of samples: the data changed)",
}
_FATE = {"drop": "dropped", "short": "a smaller batch", "wrap": "filled up with its first to another batch"}


@dataclass(kw_only=True, slots=True, frozen=True)
class Share:
    """The part of an epoch that a rank's group reads: all of it, or its host's part."""

    partition: Partition
    """How the ranks that have the same data divide it."""
    rank: int
    """This rank's number among them."""
    size: int
    """The number of samples in the data. The partition may use fewer."""
    seed: int
    """Decides the order, with epoch and size."""


class ElasticSampler:
    """The training data of one rank: shuffled, cut into micro-batches, resumable at any number of ranks.

    Iterating yields one list of indices for each micro-batch of this rank, from the first optimizer step not
    taken yet to the end of the epoch; ``accumulate`` lists in a row are one optimizer step. Only
    `advance` counts a step as taken: a batch that a loader fetched ahead is not lost when the process dies.

    ``tail`` decides what happens to the samples behind the last whole global batch of an epoch. By default they are
    left out; with a shuffle, each epoch leaves out different samples.

    Examples:
        >>> sampler = ElasticSampler(10, global_batch=4, rank=0, world_size=2, shuffle=False)
        >>> list(sampler)
        [[0, 1], [4, 5]]
        >>> sampler.advance()  # after the optimizer step
        >>> other = ElasticSampler(10, global_batch=4, rank=0, world_size=1, shuffle=False)
        >>> other.load_state_dict(sampler.state_dict())  # continues with one rank
        >>> list(other)
        [[4, 5, 6, 7]]
    """

    def __init__(
        self,
        size: int,
        *,
        global_batch: int,
        rank: int = 0,
        world_size: int = 1,
        accumulate: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        tail: Tail = "drop",
        fingerprint: str | None = None,
    ) -> None:
        """Describe the order.

        Args:
            size: The number of samples of the dataset.
            global_batch: Samples of an optimizer step, over all ranks and micro-batches.
            rank: This process's rank.
            world_size: The number of processes.
            accumulate: Micro-batches of an optimizer step on each rank.
            seed: Decides the order, with the epoch and the size.
            shuffle: False keeps the dataset's own order.
            tail: ``"drop"`` leaves out the samples behind the last whole global batch; ``"short"`` makes a smaller
                batch of them, whose losses `loss_weight` weighs; ``"wrap"`` fills that batch with the first samples
                of the same epoch.
            fingerprint: The data's, from `smddp.data.fingerprint`; a position in other data is refused.

        Raises:
            ValueError: The numbers do not fit each other.
        """
        size, global_batch, rank, world_size, accumulate, seed = as_whole_numbers(
            size=size, global_batch=global_batch, rank=rank, world_size=world_size, accumulate=accumulate, seed=seed
        )
        _check_rank(rank, world_size)
        self._partition = Partition(
            size=size, global_batch=global_batch, world_size=world_size, accumulate=accumulate, tail=tail
        )
        self.size = size
        self.global_batch = global_batch
        self.rank = rank
        self.world_size = world_size
        self.accumulate = accumulate
        self.seed = seed
        self.shuffle = shuffle
        self.tail: Tail = tail
        self.fingerprint = fingerprint
        self._epoch = 0
        self._consumed = 0
        self._end, self._short = self._partition.end, self._partition.short
        if rank == 0 and size % global_batch:
            logger.info(
                "an epoch is %s of %d samples; the last %d of its order are %s (%d samples in all)",
                counted(self.steps_per_epoch, "step"),
                global_batch,
                size % global_batch,
                _FATE[tail],
                size,
            )

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._epoch

    @property
    def consumed(self) -> int:
        """Samples of this epoch consumed by optimizer steps, over all ranks.

        At the end of an epoch it is ``size`` with a short last batch, otherwise ``steps_per_epoch * global_batch``.
        """
        return self._consumed

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in a whole epoch."""
        return self._partition.steps

    @property
    def share(self) -> Share:
        """The data this rank takes part in."""
        return Share(partition=self._partition, rank=self.rank, size=self.size, seed=self.seed)

    def __len__(self) -> int:
        """Return the number of this rank's micro-batches left in the epoch."""
        return -((self._consumed - self._end) // self.global_batch) * self.accumulate

    def __iter__(self) -> MicroBatches:
        """Return an iterator over this rank's micro-batches, from the first step not taken to the end of the epoch."""
        return self._from(-(-self._consumed // self.global_batch))

    def whole_epoch(self) -> MicroBatches:
        """Return an iterator over all of this rank's micro-batches of the epoch, such as for an evaluation."""
        return self._from(0)

    def _from(self, step: int) -> MicroBatches:
        share = self.share
        order = Permutation(size=share.size, seed=share.seed, epoch=self._epoch) if self.shuffle else None
        return MicroBatches(share.partition, rank=share.rank, order=order, step=step, loaded=self._go_to)

    def start_epoch(self, epoch: int) -> None:
        """Begin this epoch, or continue it if it is the current one."""
        epoch = as_whole_number("epoch", epoch)
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}: epochs are counted from 0")
        if epoch != self._epoch:
            self._epoch, self._consumed = epoch, 0

    def advance(self) -> None:
        """Count one optimizer step as taken.

        Raises:
            ValueError: All steps of the epoch were taken already.
        """
        if self._consumed >= self._end:
            raise ValueError(
                f"all {self.steps_per_epoch} steps of epoch {self._epoch} are taken; "
                f"call start_epoch({self._epoch + 1})"
            )
        self._consumed = min(self._consumed + self.global_batch, self._end)

    def loss_weight(self, micro_batch: int) -> float:
        """Return the factor for the mean loss of a micro-batch of the current step, on this rank.

        Args:
            micro_batch: From 0 to ``accumulate - 1``.

        Returns:
            1.0, except in a short last batch. There a micro-batch's weight is proportional to its samples, and 0.0
            if it only repeats a sample. So the step's gradient, divided by ``accumulate`` and by the world size, is the
            gradient of the mean over the step's samples.
        """
        if not self.is_at_short_batch:
            return 1.0
        share = self.share
        return share.partition.short_weight(share.rank, micro_batch)

    @property
    def is_at_short_batch(self) -> bool:
        """Whether the current step is a short last batch."""
        return self._short > 0 and self._end - self._consumed == self._short

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, the same on every rank: a small JSON object."""
        place = {"epoch": self._epoch, "consumed": self._consumed}
        return {**self._identity(), "fingerprint": self.fingerprint, **place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position from `state_dict`, saved at any number of ranks.

        Raises:
            ValueError: The position does not fit this order.
        """
        state = {"tail": "drop", **state}  # older positions have no "tail"
        others = sorted(set(state) - set(self.state_dict()))
        if others:
            raise ValueError(
                f"the saved position in the data has {', '.join(others)}, which one in these data has not: it belongs "
                "to another kind of data; resume with that kind, or start a new run"
            )
        refuse_other_order(state, self._identity())
        self._check_fingerprint(state.get("fingerprint"))
        epoch, consumed = saved_epoch(state), state.get("consumed")
        if type(consumed) is not int or not 0 <= consumed <= self._end or not self._is_between_steps(consumed):
            raise ValueError(
                f"the saved position in the data has consumed={consumed!r}: it must be a multiple of the global "
                f"batch, {self.global_batch}, from 0 to {self._end}{f', or {self._end} itself' if self._short else ''}"
            )
        self._epoch, self._consumed = epoch, consumed

    def host_change(self, state: Mapping[str, Any]) -> str | None:  # noqa: ARG002  # every host has all of the data
        """Describe a change of hosts since a position was saved, if it affects the order; None otherwise."""
        return None

    def _is_between_steps(self, consumed: int) -> bool:
        return consumed % self.global_batch == 0 or consumed == self._end

    def _check_fingerprint(self, saved: object) -> None:
        if None not in (saved, self.fingerprint) and saved != self.fingerprint:
            raise ValueError(
                f"the data changed: its fingerprint was {saved} when the position in it was saved, and is "
                f"{self.fingerprint} now; resume with the data as it was, or start a new run with this"
            )
        if saved is not None and self.fingerprint is None and self.rank == 0:
            logger.warning("the saved position has a fingerprint of the data, this run none: a change goes unnoticed")

    def _identity(self) -> dict[str, Any]:
        """Return the values that decide the order. A position is valid only with the same values."""
        return {
            "algorithm": ALGORITHM,
            "seed": self.seed,
            "size": self.size,
            "global_batch": self.global_batch,
            "shuffle": self.shuffle,
            "tail": self.tail,
        }

    def _go_to(self, step: int) -> None:
        self._consumed = min(step * self.global_batch, self._end)


def refuse_other_order(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise ValueError if a value that decides the order differs between a saved position and this run."""
    for name, here in identity.items():
        if state.get(name) != here:
            raise ValueError(
                f"the saved position in the data has {name}={state.get(name)!r}, this run {name}={here!r}"
                f"{_MEANING.get(name, '')}: the samples would come in another order; resume with the same {name}, "
                "or start a new run"
            )


def saved_epoch(state: Mapping[str, Any]) -> int:
    """Return the epoch of a saved position; raise ValueError if it has none."""
    epoch = state.get("epoch")
    if type(epoch) is not int or epoch < 0:
        raise ValueError(f"the saved position in the data has epoch={epoch!r}: epochs are counted from 0")
    return epoch


class EvaluationSampler:
    """The evaluation data of one rank: every sample once over all ranks, nothing padded, in order.

    Each rank has one run of neighbouring samples. Ranks may differ by one sample, and so by one batch, unless
    ``even``: call no collective between the batches; reduce sums and counts after the last one.
    """

    def __init__(self, size: int, *, batch_size: int, rank: int = 0, world_size: int = 1, even: bool = False) -> None:
        """Describe the share of a rank.

        Args:
            size: The number of samples of the dataset; 0 is allowed.
            batch_size: Samples of a batch of this rank; the last one may be smaller.
            rank: This process's rank.
            world_size: The number of processes.
            even: Give each rank equally many batches, of about equal sizes.

        Raises:
            ValueError: The numbers do not fit each other, or the samples can't be divided evenly.
        """
        size, batch_size, rank, world_size = as_whole_numbers(
            size=size, batch_size=batch_size, rank=rank, world_size=world_size
        )
        _check_rank(rank, world_size)
        if size < 0:
            raise ValueError(f"size is {size}: a dataset has 0 samples or more")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: a batch has at least one sample")
        self.batch_size = batch_size
        self._share = range(size * rank // world_size, size * (rank + 1) // world_size)
        self._count = -(-len(self._share) // batch_size)
        self._is_even = even
        if even:
            self._count = -(-size // (world_size * batch_size))
            if self._count > size // world_size:
                remedy = "batch_size=2 or more" if size >= world_size else f"{world_size} samples or more"
                raise ValueError(
                    f"{size} samples in batches of {batch_size} can't be divided into equally many batches for each of "
                    f"{world_size} ranks: give {remedy}"
                )

    def __len__(self) -> int:
        """Return the number of this rank's batches."""
        return self._count

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's batches of indices."""
        size, own = self.batch_size, len(self._share)
        for number in range(self._count):
            if self._is_even:
                yield list(self._share[own * number // self._count : own * (number + 1) // self._count])
            else:
                yield list(self._share[number * size : (number + 1) * size])


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank} of world_size {world_size}: ranks go from 0 to world_size - 1")
