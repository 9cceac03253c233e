"""The batches of a loader as the loop gets them, and their part in the position in the data.

The position counts batches that the loop has finished, not optimizer steps: a batch with several steps counts once, and
a batch that the loop skipped counts, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from smddp.data import EvaluationSampler
from smddp.data.loaders import Loaders
from smddp.data.shards import ShardEvaluation
from smddp.data.worker_signals import OutliveStop
from smddp.distributed import move
from smddp.training.state_parts import LoaderState

logger = logging.getLogger(__name__)

_WRAP = "give trainer.loader() the dataset, or this DataLoader, and use what it returns"


@dataclass(kw_only=True, slots=True, frozen=True)
class Loop:
    """The calls that the batches make to their trainer."""

    begin: Callable[[], None]
    """Resume, unless the trainer has."""
    micro_batches: Callable[[], int]
    """Return how many micro-batches of the optimizer step under way were taken."""
    finish_window: Callable[[], None]
    """Take the optimizer step with the micro-batches so far."""
    look: Callable[[], None]
    """Save or stop if due. Called between two batches."""
    next_epoch: Callable[[], bool]
    """Begin the data's next epoch if the loop counts steps, and return whether it does."""
    begin_evaluation: Callable[[], Callable[[], None]]
    """Save if an evaluation may take long. Return a function to call at the evaluation's end."""
    leave: Callable[[], None]
    """Note that the loop leaves the training batches; an evaluation may follow."""
    timed: Callable[[Iterable[Any]], Iterable[Any]] = iter
    """Yield the training batches; a timer may measure the wait for each."""


class BatchStreams:
    """Yield the batches of all loaders of one trainer, on its device."""

    def __init__(self, loaders: Loaders, loop: Loop, *, device: torch.device, accumulate: int, world_size: int) -> None:
        self.in_step = False
        """Whether the loop is working on a training batch; its work after ``step`` belongs to the batch, too."""
        self.is_over = False
        """Whether to yield no further training batch after the optimizer step under way."""
        self.is_cut = False
        """Whether ``is_over`` ended an epoch's batches early."""
        self.place: LoaderState | None = None
        """The position of a training loader that keeps its own state; None for other loaders."""
        self._loaders = loaders
        self._loop = loop
        self._device = device
        self._accumulate = accumulate
        self._world_size = world_size
        self._given: int | None = None  # batches yielded in this epoch; None if the loop iterates itself
        self._has_stepped = False  # whether the newest batch had an optimizer step
        self._is_settled = True  # whether the position counts the newest batch
        self._warned = False

    def of(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, on the device."""
        outlive_stop(loader)
        if is_evaluation(loader):
            end = self._loop.begin_evaluation()
            try:
                yield from self._moved(loader)
            finally:
                end()
        elif not torch.is_grad_enabled():
            yield from self._moved(loader)
        else:
            self._loop.begin()
            keeps_place = loader is self._loaders.loader
            is_own = keeps_place and self._loaders.order is not None
            if not keeps_place:
                self._check_foreign(loader)
            was_empty = False  # a resume at an epoch's end yields one empty epoch
            while not self._cuts():
                given = 0
                for batch in self._ordered(loader) if is_own else self._foreign(loader):
                    given += 1
                    yield batch
                if self.is_cut or not self._loop.next_epoch():
                    break
                if not given and was_empty:
                    raise ValueError("the loader gave no batch in a whole epoch: trainer.steps_to() would never end")
                was_empty = not given

    def start_epoch(self) -> None:
        """Forget the batches of the previous epoch."""
        self.in_step = self.is_cut = False
        self._given, self._is_settled = None, True

    def count_step(self) -> None:
        """Count the data of an optimizer step as consumed, if the loop iterates over the loader itself."""
        self._has_stepped = True
        if self._given is None and self._loaders.order is not None:
            self._loaders.order.advance()

    def settle(self) -> None:
        """Count the batch under way as consumed, because the loop is done with it, or saves after its step.

        Raise ValueError if the loop took no step or several steps on a batch, with gradient accumulation.
        """
        order = self._loaders.order
        if order is None or self._given is None or self._is_settled or self._given % self._accumulate:
            return
        if self._accumulate > 1:
            self._check_taken(0)
        order.advance()
        self._is_settled = True

    def check_step(self) -> None:
        """Raise ValueError if, with gradient accumulation, an earlier batch had no step or several."""
        if self._accumulate > 1 and self._given is not None:
            self._check_taken((self._given - 1) % self._accumulate)

    def _ordered(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of the training loader, and keep its position."""
        self._given = 0
        try:
            for batch in self._loop.timed(self._moved(loader)):
                if self._given is None:
                    raise ValueError(
                        "these batches go on where another epoch, or another iteration over the same loader, has begun "
                        "since: call trainer.batches(loader) anew in each epoch, and not within its own loop"
                    )
                self._given += 1
                self._is_settled = self._has_stepped = False
                self.in_step = True
                yield batch
                self.settle()
                self._loop.look()
                if self.is_over and self._has_more() and self._cuts():
                    break
            self._loop.leave()
        except GeneratorExit:  # a `break`
            self._loop.leave()
            raise
        finally:
            if self._has_stepped and self._loop.micro_batches() == 0:
                self.settle()  # after a `break`
            self.in_step = False
            self._given = None

    def _cuts(self) -> bool:
        """Return whether the batches end here, between two optimizer steps."""
        self.is_cut = self.is_over and self._loop.micro_batches() == 0
        return self.is_cut

    def _has_more(self) -> bool:
        order = self._loaders.order
        return order is None or order.steps_per_epoch is None or len(order) > 0

    def _check_taken(self, expected: int) -> None:
        taken = self._loop.micro_batches()
        if taken != expected:
            raise ValueError(
                f"{taken} of {self._accumulate} micro-batches of the optimizer step were taken, where {expected} were "
                f"given out before: with accumulate={self._accumulate} each batch wants exactly one trainer.step(); "
                "leave samples out in the dataset, or multiply such a loss by 0"
            )

    def _foreign(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader that the user made; its last optimizer step may have fewer micro-batches."""
        place = self.place if loader is self._loaders.loader else None
        if place is not None and not place.begin():
            return
        try:
            for batch in self._loop.timed(self._moved(loader)):
                self.in_step = True
                yield batch
                self._loop.look()
                if self.is_over and self._cuts():
                    break
            else:
                if place is not None:
                    place.is_over = True
            self._loop.leave()
        except GeneratorExit:  # a `break`
            self._loop.leave()
            raise
        finally:
            self.in_step = False
        if self._loop.micro_batches() and self._given is None:  # else the training loader's window continues
            self._loop.finish_window()

    def _moved(self, loader: Iterable[Any]) -> Iterable[Any]:
        return loader if self._device.type == "cpu" else (move(batch, self._device) for batch in loader)

    def _check_foreign(self, loader: Iterable[Any]) -> None:
        """Raise ValueError if every rank would train on the same data; warn once that the position is not saved."""
        check_shares(loader, self._world_size)
        if self._warned:
            return
        self._warned = True
        reads_in_sequence = isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)
        remedy = "use trainer.loader(dataset, batch_size=...)"
        if reads_in_sequence:
            remedy = "use torchdata's StatefulDataLoader, or smddp.ShardedDataset"
        elif isinstance(loader, DataLoader):
            remedy = _WRAP
        logger.warning(
            "the place in this %s is in no checkpoint: a resume begins its epoch anew; to go on in mid-epoch, %s%s",
            type(loader).__name__,
            remedy,
            "; each rank must read its own share of it" if self._world_size > 1 else "",
        )


def check_shares(loader: object, world_size: int) -> None:
    """Raise ValueError if a DataLoader would give all of the data to every rank."""
    if world_size == 1 or not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return
    sampler = getattr(loader.batch_sampler, "sampler", None)
    draws_alike = isinstance(sampler, WeightedRandomSampler | SubsetRandomSampler) and sampler.generator is None
    # torchdata's own RandomSampler is no subclass of torch's.
    takes_all = isinstance(sampler, RandomSampler | SequentialSampler) or type(sampler).__qualname__ == "RandomSampler"
    if draws_alike or takes_all:
        raise ValueError(
            f"this {type(loader).__name__} gives each of {world_size} ranks all of the data, by a "
            f"{type(sampler).__name__}: {_WRAP}; or give it a sampler that knows the rank, a DistributedSampler or one "
            "with a generator that is seeded by rank"
        )


def outlive_stop(loader: object) -> None:
    """Let the workers of a user's loader survive the signal of a stop."""
    if isinstance(loader, DataLoader) and loader.num_workers and not isinstance(loader.worker_init_fn, OutliveStop):
        loader.worker_init_fn = OutliveStop(loader.worker_init_fn)


def is_evaluation(loader: object) -> bool:
    """Return whether `Trainer.evaluation_loader` made this loader."""
    return isinstance(getattr(loader, "batch_sampler", None), EvaluationSampler | ShardEvaluation)
