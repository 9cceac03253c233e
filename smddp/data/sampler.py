"""Batch samplers whose order does not depend on how many processes share the work.

The global batch is the constant. An epoch is a sequence of positions; optimizer step s takes the s-th run
of ``global_batch`` positions; micro-batch m of rank r is a fixed piece of that run; and the sample at a
position is a pure function of seed, epoch and position. So any number of ranks sees the same global batches,
and a run that stopped in mid-epoch goes on at the very next sample, with as many ranks as there are now.

They are batch samplers, for ``torch.utils.data.DataLoader(dataset, batch_sampler=...)``. They know sizes and
indices, never the data.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from smddp.data.permutation import ALGORITHM, LARGEST_SIZE, Permutation

logger = logging.getLogger(__name__)

_BLOCK = 1 << 14  # samples of one rank whose order is computed at a time: one block of the permutation


class ElasticSampler:
    """The training data of one rank: shuffled, cut into micro-batches, resumable at any number of ranks.

    Iterating gives one list of indices for each micro-batch of this rank, from the first optimizer step that
    was not taken yet to the end of the epoch; ``accumulate`` lists in a row are one optimizer step. Only
    `advance` counts a step as taken: a batch that a loader fetched ahead is not lost when the process dies.

    Samples beyond the last whole global batch of an epoch are left out of it; with a shuffle they are others
    in each epoch.
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
    ) -> None:
        """Describe the order.

        Args:
            size: how many samples the dataset has.
            global_batch: samples an optimizer step, over all ranks and micro-batches.
            rank: this process.
            world_size: how many processes there are.
            accumulate: micro-batches an optimizer step on each rank.
            seed: decides, with the epoch and the size, the order.
            shuffle: False keeps the dataset's own order.

        Raises:
            ValueError: the numbers do not fit each other.
        """
        _check_rank(rank, world_size)
        if not 1 <= size <= LARGEST_SIZE:
            raise ValueError(f"size is {size}: a dataset to train on has 1 to 2**63 samples")
        if accumulate < 1:
            raise ValueError(f"accumulate is {accumulate}: an optimizer step has at least one micro-batch")
        shares = world_size * accumulate
        if global_batch < 1 or global_batch % shares:
            raise ValueError(
                f"global_batch is {global_batch}: it must divide by world_size * accumulate = {world_size} * "
                f"{accumulate} = {shares}; the nearest that do are {_nearest_multiples(global_batch, shares)}"
            )
        if global_batch > size:
            raise ValueError(
                f"global_batch is {global_batch}, but the dataset has only {size} samples, not one whole batch; "
                f"choose a global_batch of at most {size}"
            )
        self.size = size
        self.global_batch = global_batch
        self.rank = rank
        self.world_size = world_size
        self.accumulate = accumulate
        self.seed = seed
        self.shuffle = shuffle
        self._epoch = 0
        self._consumed = 0
        if rank == 0 and size % global_batch:
            logger.info(
                "an epoch is %d steps of %d samples; the last %d of its order are dropped (%d samples in all)",
                *(self.steps_per_epoch, global_batch, size % global_batch, size),
            )

    @property
    def epoch(self) -> int:
        """The epoch whose order is given, from 0."""
        return self._epoch

    @property
    def consumed(self) -> int:
        """Samples of this epoch, over all ranks, that optimizer steps were taken on."""
        return self._consumed

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in a whole epoch."""
        return self.size // self.global_batch

    def __len__(self) -> int:
        """Micro-batches of this rank that are left in the epoch."""
        return (self.steps_per_epoch - self._consumed // self.global_batch) * self.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        """Give this rank's micro-batches from the first step not taken to the end of the epoch."""
        order = Permutation(size=self.size, seed=self.seed, epoch=self._epoch)
        return self._micro_batches(order, self._consumed)

    def start_epoch(self, epoch: int) -> None:
        """Begin this epoch, or go on with it where it is already under way."""
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}: epochs are counted from 0")
        if epoch != self._epoch:
            self._epoch, self._consumed = epoch, 0

    def advance(self) -> None:
        """Count one optimizer step as taken.

        Raises:
            ValueError: all steps of the epoch were taken already.
        """
        if len(self) == 0:
            raise ValueError(
                f"all {self.steps_per_epoch} steps of epoch {self._epoch} are taken; "
                f"call start_epoch({self._epoch + 1})"
            )
        self._consumed += self.global_batch

    def state_dict(self) -> dict[str, Any]:
        """Give the position in the data, the same on every rank: a small JSON object."""
        return {**self._identity(), "epoch": self._epoch, "consumed": self._consumed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `state_dict` gave, at any number of ranks.

        Raises:
            ValueError: the position belongs to another order, or to none.
        """
        for name, here in self._identity().items():
            if state.get(name) != here:
                raise ValueError(
                    f"the saved position in the data has {name}={state.get(name)!r}, this run {name}={here!r}: "
                    f"the samples would come in another order; resume with the same {name}, or start a new run"
                )
        epoch, consumed = state.get("epoch"), state.get("consumed")
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"the saved position in the data has epoch={epoch!r}: epochs are counted from 0")
        whole = self.steps_per_epoch * self.global_batch
        if type(consumed) is not int or not 0 <= consumed <= whole or consumed % self.global_batch:
            raise ValueError(
                f"the saved position in the data has consumed={consumed!r}: it must be a multiple of the global "
                f"batch, {self.global_batch}, from 0 to {whole}"
            )
        self._epoch, self._consumed = epoch, consumed

    def _identity(self) -> dict[str, Any]:
        """What decides the order: a position means nothing without it."""
        return {
            "algorithm": ALGORITHM,
            "seed": self.seed,
            "size": self.size,
            "global_batch": self.global_batch,
            "shuffle": self.shuffle,
        }

    def _micro_batches(self, order: Permutation, consumed: int) -> Iterator[list[int]]:
        micro_batch = self.global_batch // (self.world_size * self.accumulate)
        # Where the micro-batches of this rank lie in a global batch: one row each.
        first = (np.arange(self.accumulate) * self.world_size + self.rank) * micro_batch
        pieces = first[:, np.newaxis] + np.arange(micro_batch)
        steps_a_block = max(1, _BLOCK // pieces.size)
        for block in range(consumed // self.global_batch, self.steps_per_epoch, steps_a_block):
            steps = np.arange(block, min(block + steps_a_block, self.steps_per_epoch))
            positions = (steps * self.global_batch)[:, np.newaxis, np.newaxis] + pieces
            samples = order.permute(positions) if self.shuffle else positions
            yield from samples.reshape(-1, micro_batch).tolist()


class EvaluationSampler:
    """The evaluation data of one rank: every sample once over all ranks, nothing padded, in order.

    Each rank has one run of neighbouring samples. Ranks may differ by one sample, and so by one batch: between
    the batches there must be no collective; reduce sums and counts after the last one.
    """

    def __init__(self, size: int, *, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        """Describe the share of a rank.

        Args:
            size: how many samples the dataset has. None at all is allowed.
            batch_size: samples a batch of this rank; the last one may be smaller.
            rank: this process.
            world_size: how many processes there are.

        Raises:
            ValueError: the numbers do not fit each other.
        """
        _check_rank(rank, world_size)
        if size < 0:
            raise ValueError(f"size is {size}: a dataset has 0 samples or more")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: a batch has at least one sample")
        self.batch_size = batch_size
        self._share = range(size * rank // world_size, size * (rank + 1) // world_size)

    def __len__(self) -> int:
        """Batches of this rank."""
        return -(-len(self._share) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        """Give this rank's batches of indices."""
        for start in range(0, len(self._share), self.batch_size):
            yield list(self._share[start : start + self.batch_size])


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank} of world_size {world_size}: ranks go from 0 to world_size - 1")


def _nearest_multiples(number: int, of: int) -> str:
    below = max(number // of, 0) * of
    return " and ".join(str(multiple) for multiple in (below, below + of) if multiple > 0)
