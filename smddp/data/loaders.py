"""The DataLoaders of one rank: training data whose position a checkpoint keeps, and evaluation data, each sample once.

The samplers choose the samples of a batch; ``torch.utils.data.DataLoader`` fetches them. Random augmentation does not
depend on workers: seed, epoch and sample alone decide what is drawn for a sample; in an evaluation, seed and sample.
The generators of a DataLoader's worker start anew with every epoch and every resume, so what they draw depends on the
number of workers, the number of ranks, and the place where training was interrupted. Here they are seeded for each
sample. (Without workers the rank's own process fetches the sample, and the checkpoint keeps its generators.)
"""

from __future__ import annotations

import hashlib
import inspect
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    get_worker_info,
)

from smddp.data.build_order import AnyDataset, OrderOptions, make_evaluation, make_rank_data
from smddp.data.formats.record import RawRecord
from smddp.data.order import DataOrder, EvaluationSampler
from smddp.data.shards import ShardEvaluation
from smddp.data.worker_signals import OutliveStop
from smddp.distributed import Membership

_Key = tuple[int, list[Any]]
"""An epoch, and the samples of a batch as the order names them."""

_EVALUATION = -1
"""The epoch of an evaluation, in `_Key`."""

_REMEDY = (
    "give trainer.loader() the dataset itself, or a loader that keeps its place: torchdata's StatefulDataLoader, or "
    "smddp.ShardedDataset"
)
_PASSED_ON = (
    "num_workers",
    "collate_fn",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
)


class Loaders:
    """Makes the loaders of a training run; ``seed`` decides what its workers draw at random.

    With ``even``, an evaluation has equally many batches on all ranks.
    """

    def __init__(self, membership: Membership, *, seed: int, pin_memory: bool, even: bool = False) -> None:
        self.order: DataOrder | None = None
        """The training data's order and position; None before `training` made a loader."""
        self.loader: Iterable[Any] | None = None
        """The training loader: made by `training`, or the user's own stateful loader."""
        self._membership = membership
        self._seed = seed
        self._even = even
        # A separate generator: a loader must not draw from the RNG of the model's dropout.
        self._worker_seeds = torch.Generator()
        self._defaults = {"pin_memory": pin_memory, "generator": self._worker_seeds}

    def training(self, dataset: AnyDataset, order: OrderOptions, *, options: dict[str, Any]) -> DataLoader[Any]:
        """Return a loader of this rank's share of each global batch. Collective; raises as `make_rank_data`."""
        check_in_order(options.get("in_order", True))
        data = make_rank_data(dataset, order, self._membership)
        self.order = data.order
        seeded = Seeded(data.fetching, data.seed)
        batches = InEpoch(data.order, order.accumulate, seeded)
        self.loader = loader = DataLoader(seeded, batch_sampler=batches, **self._complete(options))
        return loader

    def evaluation(
        self, dataset: AnyDataset, *, batch_size: int, sharded_by_host: bool, options: dict[str, Any]
    ) -> DataLoader[Any]:
        """Return a loader of this rank's share of all samples, in order, unpadded. Collective."""
        sampler, fetching = make_evaluation(
            dataset, batch_size, self._membership, sharded_by_host=sharded_by_host, even=self._even
        )
        seeded = SeededEvaluation(fetching, self._seed)
        return DataLoader(seeded, batch_sampler=InEvaluation(sampler, seeded), **self._complete(options))

    def start_epoch(self, epoch: int) -> None:
        """Go to the beginning of the epoch, unless the position is already inside it."""
        self._worker_seeds.manual_seed(hash((self._seed, epoch, self._membership.data_rank.rank)) % 2**63)
        if self.order is not None:
            self.order.start_epoch(epoch)

    def _complete(self, options: dict[str, Any]) -> dict[str, Any]:
        if options.get("num_workers"):
            options = {**options, "worker_init_fn": OutliveStop(_ShowDataset(options.get("worker_init_fn")))}
        return {**self._defaults, **options}


class InEpoch(Sampler[Any]):
    """An order whose batches carry their epoch, which a worker process cannot know.

    An iteration under ``torch.no_grad`` evaluates, and sees the whole epoch: an accuracy of the training data, or
    BatchNorm's statistics by ``torch.optim.swa_utils.update_bn``. One with gradients trains, and continues.
    """

    def __init__(self, order: DataOrder, accumulate: int, dataset: Seeded) -> None:
        self.order = order
        self._accumulate = accumulate
        self._dataset = dataset

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch; raise TypeError if it is not known yet."""
        steps = self.order.steps_per_epoch
        return len(self.order) if steps is None else steps * self._accumulate

    def __iter__(self) -> Iterator[_Key]:
        """Yield the batches left in the epoch, or all of them without gradients, each with the epoch's number.

        Raise ValueError if the length of the dataset has changed.
        """
        self._dataset.check_length(
            "trainer.loader() was called: the shuffle and the position in checkpoints depend on that number. Keep the "
            "dataset's length; to train on other data, begin a new run with smddp.load_weights(), or give a DataLoader "
            "of your own to trainer.batches() alone: then checkpoints do not contain its position"
        )
        epoch = self.order.epoch
        batches = iter(self.order) if torch.is_grad_enabled() else self.order.whole_epoch()
        return ((epoch, samples) for samples in batches)


class InEvaluation(Sampler[Any]):
    """The order of an evaluation, of a dataset that must keep its length."""

    def __init__(self, order: EvaluationSampler | ShardEvaluation, dataset: Seeded) -> None:
        self._order = order
        self._dataset = dataset

    def __len__(self) -> int:
        """Return the number of this rank's batches."""
        return len(self._order)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over this rank's batches. Raise ValueError if the length of the dataset has changed."""
        self._dataset.check_length("trainer.evaluation_loader() was called: call it again for the changed dataset")
        return iter(self._order)


class Seeded(Dataset[Any]):
    """A dataset that seeds the random generators for each sample it fetches in a loader's worker.

    It seeds torch's CPU generator, ``random`` and, if imported, NumPy. A dataset that fetches a batch at a time
    (``__getitems__``) is seeded once a batch, by the batch's first sample.
    """

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        """Wrap a dataset. Hosts whose indices name different samples need different seeds."""
        self.dataset = dataset
        self.seed = seed
        self._length = self._count()

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: Any) -> Any:
        """Return one sample, as the dataset itself does."""
        return self.dataset[index]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the dataset, such as the ``classes`` that a script reads of ``loader.dataset``."""
        if name == "dataset" or name.startswith("__"):  # pickle asks for them
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitems__(self, key: _Key) -> Any:
        """Fetch the samples of a batch."""
        epoch, samples = key
        in_worker = get_worker_info() is not None
        if _fetches_batches(self.dataset):
            if in_worker and samples:
                self._seed(epoch, samples[0])
            return self.dataset.__getitems__(samples)  # type: ignore[attr-defined]
        fetched = []
        for sample in samples:
            if in_worker:
                self._seed(epoch, sample)
            fetched.append(self.dataset[sample])
        return fetched

    def check_length(self, since: str) -> None:
        """Raise ValueError if the dataset has another length than when it was wrapped."""
        length = self._count()
        if length != self._length:
            raise ValueError(
                f"the dataset {type(self.dataset).__name__} has {length} samples, and had {self._length} when {since}"
            )

    def _count(self) -> int | None:
        """Return the length of the dataset, or None if its samples are records of shards or pipes."""
        return len(self.dataset) if hasattr(self.dataset, "__len__") else None

    def _seed(self, epoch: int, sample: object) -> None:
        name = sample.key if isinstance(sample, RawRecord) else sample
        text = f"{self.seed}, {epoch}, {name}"
        digest = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest()
        number = int.from_bytes(digest, "little")
        torch.default_generator.manual_seed(number)  # torch.manual_seed would also seed accelerators, which is slow
        random.seed(number)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(number % 2**32)


class SeededEvaluation(Seeded):
    """A dataset whose random numbers in a worker depend on the sample alone: the same in each evaluation."""

    def __getitems__(self, samples: Any) -> Any:
        """Fetch the samples of a batch."""
        return super().__getitems__((_EVALUATION, samples))


class _ShowDataset:
    """A ``worker_init_fn``: it makes ``get_worker_info().dataset`` the user's dataset, and then calls ``then``."""

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self._then = then

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert isinstance(info.dataset, Seeded)
        object.__setattr__(info, "dataset", info.dataset.dataset)  # it is frozen
        if self._then is not None:
            self._then(worker_id)


def _fetches_batches(dataset: Dataset[Any]) -> bool:
    """Return whether a dataset has its own `__getitems__`; a `Subset` only forwards to its dataset's."""
    while isinstance(dataset, Subset) and type(dataset).__getitems__ is Subset.__getitems__:
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


@runtime_checkable
class StatefulLoader(Protocol):
    """A loader that keeps its own position, as torchdata's StatefulDataLoader does."""

    def state_dict(self) -> Any:
        """Return the position."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Restore the position. The next iteration starts from it."""


def check_in_order(in_order: object) -> None:
    """Raise ValueError for a training loader whose workers' batches come in any order."""
    if not in_order:
        raise ValueError(
            "in_order=False yields the batches of several workers in any order, and a resume, which continues at one "
            "position in the order, would lose samples and repeat others: leave in_order out"
        )


def _overridden(kind: type[DataLoader[Any]]) -> list[str]:
    """Return the methods and properties of DataLoader that a subclass defines anew, except the constructor."""
    defined = [
        name for name, value in vars(DataLoader).items() if inspect.isroutine(value) or isinstance(value, property)
    ]
    return [name for name in defined if name != "__init__" and getattr(kind, name) is not getattr(DataLoader, name)]


@dataclass(kw_only=True, slots=True, frozen=True)
class DataLoaderOptions:
    """The options of a plain DataLoader."""

    dataset: Dataset[Any]
    micro_batch_size: int
    """The DataLoader's batch size: the samples that one rank computes at a time."""
    shuffle: bool
    drop_last: bool
    options: dict[str, Any]
    """Further arguments of DataLoader."""

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> DataLoaderOptions:
        """Read the options of a DataLoader.

        Raise ValueError if it is iterable-style, has a custom sampler, or overrides methods of DataLoader.
        """
        if isinstance(loader.dataset, IterableDataset):
            raise ValueError(
                f"the DataLoader reads {type(loader.dataset).__name__} in sequence, and keeps no place in it: {_REMEDY}"
            )
        check_in_order(loader.in_order)
        if overridden := _overridden(type(loader)):
            raise ValueError(
                f"{type(loader).__name__} has its own {' and '.join(overridden)}, and trainer.loader() takes only the "
                "dataset and the options of a DataLoader: change the batches in a collate_fn; derive the class from "
                "torchdata's StatefulDataLoader; or give the loader to trainer.batches() alone: then checkpoints do "
                "not contain its position, and each rank must read its own share"
            )
        batch_sampler = loader.batch_sampler
        if type(batch_sampler) is not BatchSampler:
            raise ValueError(f"the DataLoader's batches come from {type(batch_sampler).__name__}: {_REMEDY}")
        sampler: object = batch_sampler.sampler
        size = len(loader.dataset)  # type: ignore[arg-type]
        if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == size:
            shuffle = True
        elif type(sampler) is SequentialSampler:
            shuffle = False
        elif type(sampler) is DistributedSampler:
            shuffle = sampler.shuffle
        else:
            raise ValueError(f"the DataLoader's order is that of {type(sampler).__name__}: {_REMEDY}")
        return cls(
            dataset=loader.dataset,
            micro_batch_size=batch_sampler.batch_size,
            shuffle=shuffle,
            drop_last=batch_sampler.drop_last,
            options={name: getattr(loader, name) for name in _PASSED_ON}
            | ({"pin_memory": True} if loader.pin_memory else {}),  # otherwise the default for the device
        )
