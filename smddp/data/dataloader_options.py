"""Translates a user's DataLoader into the options of a loader whose position a checkpoint keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

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


@runtime_checkable
class StatefulLoader(Protocol):
    """A loader that keeps its own position, as torchdata's StatefulDataLoader does."""

    def state_dict(self) -> Any:
        """Return the position."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Restore the position. The next iteration starts from it."""


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
        """Read the options of a DataLoader. Raise ValueError if it is iterable-style or has a custom sampler."""
        if isinstance(loader.dataset, IterableDataset):
            raise ValueError(
                f"the DataLoader reads {type(loader.dataset).__name__} in sequence, and keeps no place in it: {_REMEDY}"
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
