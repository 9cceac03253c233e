"""The orders of an epoch that are compared: each gives rank 0 of eight its batches, from any point of the epoch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from types import ModuleType

RANKS = 8
BATCH = 256
GLOBAL_BATCH = RANKS * BATCH
WORKERS = 8
SHARD = 1 << 14  # samples a shard of Mosaic's: its algorithm places shards first, then samples within a block

Batches = Callable[[int, int], Iterator[list[int]]]
"""Given the number of samples and of those that are consumed already, by all ranks: lists of indices."""


def smddp(size: int, consumed: int) -> Iterator[list[int]]:
    """Seeks: the position is the whole state."""
    from smddp.data import ElasticSampler

    sampler = ElasticSampler(size, global_batch=GLOBAL_BATCH, world_size=RANKS)
    sampler.load_state_dict({**sampler.state_dict(), "consumed": consumed})
    return iter(sampler)


def distributed_sampler(size: int, consumed: int) -> Iterator[list[int]]:
    """Has no state: the consumed batches are drawn once more."""
    from torch.utils.data import BatchSampler, DistributedSampler

    sampler: DistributedSampler[int] = DistributedSampler(range(size), num_replicas=RANKS, rank=0)
    return islice(BatchSampler(sampler, BATCH, drop_last=True), consumed // GLOBAL_BATCH, None)


def torchdata(size: int, consumed: int) -> Iterator[list[int]]:
    """Keep how many a rank has drawn, and draw them once more; another number of ranks is another order."""
    from torchdata.stateful_dataloader.sampler import BatchSampler, StatefulDistributedSampler

    sampler = StatefulDistributedSampler(range(size), num_replicas=RANKS, rank=0)
    sampler.load_state_dict({"yielded": consumed // RANKS})
    return iter(BatchSampler(sampler, BATCH, drop_last=True))


def mosaic(size: int, consumed: int) -> Iterator[list[int]]:
    """StreamingDataset's partition and shuffle with its defaults, as its random batching calls them, once a node.

    Left out, in its favour: that its ranks wait for the first one, and get the result through shared memory.
    """
    import numpy as np

    partition, shuffle = _mosaic("partition").get_partitions, _mosaic("shuffle").get_shuffle
    ids = partition("relaxed", size, 1, 1, RANKS, WORKERS, BATCH, consumed, 1)
    shards = np.full(-(-size // SHARD), SHARD, dtype=np.int64)
    shards[-1] = size - shards[:-1].sum()
    samples = np.where(ids != -1, shuffle("py1e", shards, 1, 9176, 0, 4_000_000)[ids], -1)
    mine = samples[0, 0]  # of shape (workers, batches a worker, batch)
    return (mine[turn % WORKERS, turn // WORKERS].tolist() for turn in range(mine.shape[0] * mine.shape[1]))


CONTENDERS: dict[str, tuple[str, Batches]] = {
    "smddp ElasticSampler": ("smddp", smddp),
    "torch DistributedSampler": ("torch", distributed_sampler),
    "torchdata StatefulDistributedSampler": ("torchdata", torchdata),
    "Mosaic StreamingDataset (py1e)": ("streaming", mosaic),
}
"""By name: the package that it needs, and its batches."""


def _mosaic(name: str) -> ModuleType:
    """Return a module of mosaicml-streaming without the package around it, which imports all clouds' SDKs."""
    if "streaming" not in sys.modules:
        spec = find_spec("streaming")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        for package, folder in (("streaming", ""), ("streaming.base", "/base")):
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = [location + folder for location in spec.submodule_search_locations]
    return import_module(f"streaming.base.{name}")
