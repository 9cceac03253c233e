"""The training data of one rank, and the position of the loop in it.

The position counts batches that the loop has finished, not optimizer steps: a batch with several steps counts once, and
a batch that the loop skipped counts, too.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from itertools import islice
from typing import Any, TypeGuard

import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from smddp.accelerator import has_streams
from smddp.checkpoint.run_state import Stateful
from smddp.data import ElasticSampler, EvaluationSampler
from smddp.data.build_order import AnyDataset, OrderOptions
from smddp.data.loaders import DataLoaderOptions, InEvaluation, Loaders, StatefulLoader, check_in_order
from smddp.data.order import DataOrder
from smddp.data.order.data_order import Tail
from smddp.data.order.host_sharding import OnChange
from smddp.data.shards import ShardEvaluation
from smddp.data.worker_signals import OutliveStop
from smddp.distributed import Membership, move
from smddp.metrics import StepTimer
from smddp.training.loader_state import LoaderState
from smddp.training.optimizer_step import OptimizerStep
from smddp.whole_numbers import as_whole_number

logger = logging.getLogger(__name__)

_WRAP = "give trainer.loader() the dataset, or this DataLoader, and use what it returns"


class TrainingData:
    """Make the loaders of one rank, yield their batches, and keep the position in the training data.

    ``step`` is the optimizer step that the batches feed: it counts the micro-batches taken. With ``even``, all ranks
    have equally many batches of an evaluation.
    """

    def __init__(
        self,
        membership: Membership,
        step: OptimizerStep,
        *,
        device: torch.device,
        seed: int,
        timer: StepTimer | None,
        even: bool,
    ) -> None:
        self._loaders = Loaders(membership, seed=seed, pin_memory=has_streams(device), even=even)
        self._loader_state: LoaderState | None = None
        self._step = step
        self._device = device
        self._seed = seed
        self._timed = iter if timer is None else timer.batches
        self._membership = membership
        self._yielded: int | None = None  # batches of this epoch; None if the script iterates over the loader
        self._has_stepped = False  # whether the newest batch had an optimizer step
        self._is_settled = True  # whether the position counts the newest batch
        self._has_ended = False  # whether the epoch's batches have been yielded to their end
        self._warned = False

    @property
    def order(self) -> DataOrder | None:
        """The order of the training data, with the position; None without a loader, or if that keeps its own state."""
        return self._loaders.order

    @property
    def has_loader(self) -> bool:
        """Whether there is a training loader."""
        return self._loaders.loader is not None

    @property
    def per_rank_state(self) -> dict[str, Stateful]:
        """The position of a training loader that keeps its own state, by the name of its part."""
        return {} if self._loader_state is None else {"loader": self._loader_state}

    def training_loader(
        self,
        dataset: AnyDataset | DataLoader[Any],
        batch_size: int | None,
        *,
        shuffle: bool,
        tail: Tail,
        fingerprint: str | None,
        sharded_by_host: bool,
        on_host_change: OnChange,
        options: dict[str, Any],
    ) -> DataLoader[Any]:
        """Return the training loader. Arguments and errors are the same as for `Trainer.loader`. Collective."""
        if isinstance(dataset, StatefulLoader) and batch_size is None:
            _check_shares(dataset, self._membership)
            check_in_order(getattr(dataset, "in_order", True))
            outlive_stop(dataset)  # a resume may start its workers
            self._loader_state = LoaderState(dataset, self._membership.data_rank)
            self._loaders.loader = dataset
            return dataset
        accumulate = self._step.accumulate
        if isinstance(dataset, DataLoader):
            if batch_size is not None or not shuffle or tail != "drop":
                raise ValueError(
                    "a DataLoader has a batch size, an order and drop_last of its own: leave out batch_size, shuffle "
                    "and tail, or give trainer.loader() the dataset instead"
                )
            own = DataLoaderOptions.of(dataset)
            dataset, shuffle, tail = own.dataset, own.shuffle, "drop" if own.drop_last else "short"
            batch_size = own.micro_batch_size * accumulate * self._membership.data_rank.size
            options = {**own.options, **options}
        if batch_size is None:
            raise ValueError("give batch_size: samples an optimizer step, over all ranks and micro-batches")
        order = OrderOptions(
            global_batch=as_whole_number("batch_size", batch_size),
            accumulate=accumulate,
            seed=self._seed,
            shuffle=shuffle,
            tail=tail,
            fingerprint=fingerprint,
            sharded_by_host=sharded_by_host,
            on_host_change=on_host_change,
        )
        return self._loaders.training(dataset, order, options=options)

    def evaluation_loader(
        self, dataset: AnyDataset, batch_size: int, *, sharded_by_host: bool, options: dict[str, Any]
    ) -> DataLoader[Any]:
        """Return a loader for evaluation. The arguments are the same as for `Trainer.evaluation_loader`. Collective."""
        return self._loaders.evaluation(
            dataset, batch_size=batch_size, sharded_by_host=sharded_by_host, options=options
        )

    def start_epoch(self, epoch: int) -> None:
        """Begin the epoch, or continue it if the position is inside it."""
        self._yielded, self._is_settled, self._has_ended = None, True, False
        self._loaders.start_epoch(epoch)

    def end_epoch(self) -> None:
        """End the epoch of a loader that keeps its own state."""
        if self._loader_state is not None:
            self._loader_state.start_epoch()

    def is_training_loader(self, loader: object) -> bool:
        """Return whether `training_loader` returned this loader."""
        return loader is self._loaders.loader

    def batches(self, loader: Iterable[Any]) -> Generator[Any, None, None]:
        """Yield the batches of a training loader for one epoch, on the device. Raise as `Trainer.batches`."""
        if loader is not self._loaders.loader:
            return self._foreign(loader)
        return self._ordered(loader) if self._loader_state is None else self._stateful(loader, self._loader_state)

    def moved(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of any loader, on the device."""
        return loader if self._device.type == "cpu" else (move(batch, self._device) for batch in loader)

    def has_more(self, loader: Iterable[Any]) -> bool:
        """Return whether the epoch of this training loader may have further batches."""
        order = self._loaders.order
        return loader is not self._loaders.loader or order is None or order.steps_per_epoch is None or len(order) > 0

    def may_end_in_window(self, loader: Iterable[Any]) -> bool:
        """Return whether the batches of this loader may have ended within an optimizer step, on any rank.

        A loader with an order gives whole steps. Within its loop, another loader's micro-batches belong to its step.
        """
        follows_order = loader is self._loaders.loader and self._loaders.order is not None
        return not follows_order and self._yielded is None

    def loss_weight(self) -> float:
        """Return the factor for the loss of the next micro-batch, by the order of the data.

        Raise ValueError if, with gradient accumulation, an earlier batch had no step or several.
        """
        if self._yielded is not None and self._step.accumulate > 1:
            self._check_taken((self._yielded - 1) % self._step.accumulate)
        order = self._loaders.order
        return 1.0 if order is None else order.loss_weight(self._step.micro_batch)

    def samples(self, micro_batch: int) -> list[int]:
        """Return the dataset's indices in this rank's micro-batch of the step under way; empty if they are not known.

        Only a dataset with a length has indices.
        """
        order = self._loaders.order
        is_past = self._yielded is not None and self._is_settled
        if is_past or not isinstance(order, ElasticSampler):
            return []
        return next(islice(order, micro_batch, None), [])

    def count_step(self) -> None:
        """Count the data of an optimizer step as consumed, if the loop iterates over the loader itself."""
        self._has_stepped = True
        if self._yielded is None and self._loaders.order is not None:
            self._loaders.order.advance()

    def settle(self) -> None:
        """Count the batch under way as consumed, because the loop is done with it, or saves after its step.

        Raise ValueError if the loop took no step or several steps on a batch, with gradient accumulation.
        """
        order, accumulate = self._loaders.order, self._step.accumulate
        if order is None or self._yielded is None or self._is_settled or self._yielded % accumulate:
            return
        if accumulate > 1:
            self._check_taken(0)
        order.advance()
        self._is_settled = True

    def _ordered(self, loader: Iterable[Any]) -> Generator[Any, None, None]:
        """Yield the batches of the loader with an order, and keep its position."""
        if self._has_ended:
            raise ValueError(
                "trainer.batches(loader) has yielded this epoch's batches to their end, and only trainer.epochs() and "
                "trainer.steps_to() begin another epoch: write `for epoch in trainer.epochs(n)` around the batches"
            )
        self._yielded = 0
        try:
            for batch in self._timed(self.moved(loader)):
                if self._yielded is None:
                    raise ValueError(
                        "these batches continue where another epoch, or another iteration over the same loader, has "
                        "begun since: call trainer.batches(loader) anew in each epoch, and not within its own loop"
                    )
                self._yielded += 1
                self._is_settled = self._has_stepped = False
                yield batch
            self._has_ended = True
        finally:
            if self._has_stepped and self._step.micro_batch == 0:
                self.settle()  # after a `break`
            self._yielded = None

    def _stateful(self, loader: Iterable[Any], state: LoaderState) -> Generator[Any, None, None]:
        """Yield the batches of the loader that keeps its own state."""
        if state.begin():
            yield from self._timed(self.moved(loader))
            state.is_over = True

    def _foreign(self, loader: Iterable[Any]) -> Generator[Any, None, None]:
        """Yield the batches of a loader that `training_loader` did not return."""
        self._check_foreign(loader)
        yield from self._timed(self.moved(loader))

    def _check_taken(self, expected: int) -> None:
        taken, accumulate = self._step.micro_batch, self._step.accumulate
        if taken != expected:
            raise ValueError(
                f"{taken} of {accumulate} micro-batches of the optimizer step were taken, where {expected} were "
                f"given out before: with accumulate={accumulate} each batch wants exactly one trainer.step(); "
                "leave samples out in the dataset, or multiply such a loss by 0"
            )

    def _check_foreign(self, loader: Iterable[Any]) -> None:
        """Raise ValueError if every rank would train on the same data; warn once that the position is not saved."""
        _check_shares(loader, self._membership)
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
            "checkpoints do not contain the position in this %s, and a resume begins its epoch anew; to resume in "
            "mid-epoch, %s%s",
            type(loader).__name__,
            remedy,
            "; each rank must read its own share of it" if self._membership.data_rank.size > 1 else "",
        )


def _check_shares(loader: object, membership: Membership) -> None:
    """Raise ValueError if a DataLoader gives each rank all of the data, or this rank another share than its own."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return
    sampler = getattr(loader.batch_sampler, "sampler", None)
    share = membership.data_rank
    read = (sampler.rank, sampler.num_replicas) if isinstance(sampler, DistributedSampler) else None
    if membership.data_parallel is not None and read not in (None, (share.rank, share.size)):
        raise ValueError(
            f"this {type(loader).__name__} reads another share of the data than this rank computes on, by tensor "
            f"parallelism: {_WRAP}; or give its DistributedSampler num_replicas={share.size}, rank={share.rank}"
        )
    if share.size == 1:
        return
    draws_alike = isinstance(sampler, WeightedRandomSampler | SubsetRandomSampler) and sampler.generator is None
    # torchdata's own RandomSampler is not a subclass of torch's.
    takes_all = isinstance(sampler, RandomSampler | SequentialSampler) or type(sampler).__qualname__ == "RandomSampler"
    if draws_alike or takes_all:
        raise ValueError(
            f"this {type(loader).__name__} gives each rank all of the data, by a "
            f"{type(sampler).__name__}: {_WRAP}; or give it a sampler that knows the rank, a DistributedSampler or one "
            "with a generator that is seeded by rank"
        )


def outlive_stop(loader: object) -> None:
    """Let the workers of a user's loader survive the signal of a stop."""
    if isinstance(loader, DataLoader) and loader.num_workers and not isinstance(loader.worker_init_fn, OutliveStop):
        loader.worker_init_fn = OutliveStop(loader.worker_init_fn)


def is_evaluation(loader: object) -> TypeGuard[DataLoader[Any]]:
    """Return whether `Trainer.evaluation_loader` made this loader, or the script with a sampler for evaluation."""
    return isinstance(getattr(loader, "batch_sampler", None), InEvaluation | EvaluationSampler | ShardEvaluation)
