"""Iterates over the micro-batches of one rank in one epoch.

It does not count optimizer steps, and a checkpoint does not keep it; the sampler does both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from smddp.data.order.partition import Partition
from smddp.data.order.permutation import Permutation

_BLOCK = 1 << 14  # samples of one rank whose order is computed at a time: one block of the permutation


class MicroBatches(Iterator[list[int]]):
    """Yields a list of indices for each micro-batch, from a step of the epoch to its end.

    Its state is the position behind the last micro-batch it returned. torchdata's StatefulDataLoader stores that state
    with each batch, so it knows the last batch it returned although its workers fetch ahead.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        rank: int,
        order: Permutation | None,
        step: int,
        loaded: Callable[[int], None],
    ) -> None:
        """Begin at ``step``, from 0; at the epoch's number of steps nothing is left.

        Without an ``order``, each position holds the sample of the same number. `load_state_dict` calls ``loaded`` with
        the number of whole steps before the new position.
        """
        self._partition = partition
        self._rank = rank
        self._order = order
        self._loaded = loaded
        self._go_to(step, 0)

    def __next__(self) -> list[int]:
        """Return the next micro-batch."""
        indices = next(self._left)
        self._given += 1
        return indices

    def state_dict(self) -> dict[str, int]:
        """Return the position: whole steps of the epoch returned so far, and micro-batches of the next step."""
        step, micro_batch = divmod(self._given, self._partition.accumulate)
        cut = {"accumulate": self._partition.accumulate, "world_size": self._partition.world_size}
        return {"step": step, "micro_batch": micro_batch, **cut}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a position in this epoch; all steps before it count as taken.

        Raise ValueError if the position is inside a step that has another number of ranks or micro-batches here.
        """
        here = (self._partition.accumulate, self._partition.world_size)
        if state["micro_batch"] and (state["accumulate"], state["world_size"]) != here:
            raise ValueError(
                f"the loader's state was saved inside an optimizer step of {state['accumulate']} micro-batches on each "
                f"of {state['world_size']} ranks, this run has {here[0]} on each of {here[1]}: resume with the same "
                "numbers, or save the state between two steps"
            )
        self._go_to(state["step"], state["micro_batch"])
        self._loaded(state["step"])

    def _go_to(self, step: int, micro_batch: int) -> None:
        self._given = step * self._partition.accumulate + micro_batch
        self._left = islice(self._from(step), micro_batch, None)

    def _from(self, step: int) -> Iterator[list[int]]:
        cut, rank, order = self._partition, self._rank, self._order
        whole = cut.end // cut.global_batch
        steps_a_block = max(1, _BLOCK * cut.world_size // cut.global_batch)
        for block in range(step, whole, steps_a_block):
            positions = cut.positions(range(block, min(block + steps_a_block, whole)), rank)
            samples = positions if order is None else order.permute(positions)
            yield from samples.reshape(-1, positions.shape[-1]).tolist()
        if cut.short and step <= whole:
            for positions in cut.short_positions(rank):
                yield (positions if order is None else order.permute(positions)).tolist()
