"""The micro-batches of one rank in one epoch, under way: which samples each of them holds.

It neither counts steps nor is it what a checkpoint keeps; that is the sampler's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from smddp.data.order.partition import Partition
from smddp.data.order.permutation import Permutation

_BLOCK = 1 << 14  # samples of one rank whose order is computed at a time: one block of the permutation


class MicroBatches(Iterator[list[int]]):
    """Gives a list of indices for each micro-batch, from a step of the epoch to its end.

    Its state is the place up to which micro-batches were given out. torchdata's StatefulDataLoader keeps that with
    each batch, and so knows, though its workers fetch ahead, which one it gave out last.
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
        """Begin at a step.

        Args:
            partition: How the epoch is cut.
            rank: Whose micro-batches to give.
            order: Which samples stand at the positions; None for each at its own.
            step: The first one to give, from 0; none is left if it is that after the last.
            loaded: Is told how many steps lie before the place that `load_state_dict` went to.
        """
        self._partition = partition
        self._rank = rank
        self._order = order
        self._loaded = loaded
        self._go_to(step, 0)

    def __next__(self) -> list[int]:
        """Give the next micro-batch."""
        indices = next(self._left)
        self._given += 1
        return indices

    def state_dict(self) -> dict[str, int]:
        """Give the place: steps of the epoch that were given out whole, and micro-batches of the next one."""
        step, micro_batch = divmod(self._given, self._partition.accumulate)
        cut = {"accumulate": self._partition.accumulate, "world_size": self._partition.world_size}
        return {"step": step, "micro_batch": micro_batch, **cut}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a place in this epoch; all steps before it count as taken.

        Raises:
            ValueError: The place is inside a step that is cut otherwise here.
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
