"""A cluster simulated in one process: every rank and loader worker of it, and what all of them together read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from smddp.data import ElasticSampler

GLOBAL_BATCH = 12_288
WORKERS = 8
LIVES = (1024, 768, 1536, 1024)
"""World sizes: the run is stopped and resumed at each quarter of the epoch."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Scale:
    """What a simulated epoch, or a piece of one, came to."""

    samples: int
    """Of the dataset."""
    read: int
    """Samples that all workers of all ranks read together."""
    missing: int
    """Samples that stand in the steps taken, and that none read."""
    twice: int
    """Samples that were read more than once."""
    uneven: int
    """The most micro-batches that one worker of a rank has before another one of it."""
    state: int
    """Bytes of the position, as JSON."""
    seconds: float
    """For all ranks, on one core."""


def epoch(size: int) -> Scale:
    """Take all steps of an epoch on all ranks, and count how often each sample is read."""
    began = time.perf_counter()
    reads = np.zeros(size, dtype=np.uint8)
    steps = size // GLOBAL_BATCH
    uneven = state = taken = 0
    position: dict[str, object] | None = None
    for number, world_size in enumerate(LIVES, start=1):
        until = steps * number // len(LIVES)
        for rank in range(world_size):
            sampler = ElasticSampler(size, global_batch=GLOBAL_BATCH, rank=rank, world_size=world_size)
            if position is not None:
                sampler.load_state_dict(position)
            loads = [0] * WORKERS
            for worker, indices in _of_workers(islice(sampler, until - taken)):
                np.add.at(reads, indices, 1)  # a repeat within the micro-batch counts too
                loads[worker] += 1
            uneven = max(uneven, max(loads) - min(loads))
        for _ in range(until - taken):
            sampler.advance()
        position, taken = json.loads(json.dumps(sampler.state_dict())), until
        state = max(state, len(json.dumps(position)))
    expected = np.zeros(size, dtype=bool)
    for indices in islice(ElasticSampler(size, global_batch=GLOBAL_BATCH), steps):
        expected[indices] = True
    return Scale(
        samples=size,
        read=int(reads.sum(dtype=np.int64)),
        missing=int((expected & (reads == 0)).sum()),
        twice=int((reads > 1).sum()),
        uneven=uneven,
        state=state,
        seconds=time.perf_counter() - began,
    )


def window(size: int, steps: int) -> Scale:
    """Take some steps on all ranks in the middle of an epoch that is too long to go through."""
    began = time.perf_counter()
    alone = ElasticSampler(size, global_batch=GLOBAL_BATCH)
    middle = {**alone.state_dict(), "consumed": size // GLOBAL_BATCH // 2 * GLOBAL_BATCH}
    alone.load_state_dict(middle)
    expected = np.concatenate([np.array(indices) for indices in islice(alone, steps)])
    found = []
    uneven = 0
    for rank in range(LIVES[0]):
        sampler = ElasticSampler(size, global_batch=GLOBAL_BATCH, rank=rank, world_size=LIVES[0])
        sampler.load_state_dict(middle)
        loads = [0] * WORKERS
        for worker, indices in _of_workers(islice(sampler, steps)):
            found += indices
            loads[worker] += 1
        uneven = max(uneven, max(loads) - min(loads))
    samples, counts = np.unique(np.array(found), return_counts=True)
    return Scale(
        samples=size,
        read=len(found),
        missing=len(np.setdiff1d(expected, samples)) + len(np.setdiff1d(samples, expected)),
        twice=int((counts > 1).sum()),
        uneven=uneven,
        state=len(json.dumps(middle)),
        seconds=time.perf_counter() - began,
    )


def _of_workers(micro_batches: Iterator[list[int]]) -> Iterator[tuple[int, list[int]]]:
    """DataLoader's rule: micro-batch i goes to worker i modulo their number."""
    for number, indices in enumerate(micro_batches):
        yield number % WORKERS, indices
