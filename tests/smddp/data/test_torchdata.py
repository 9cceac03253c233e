"""torchdata's StatefulDataLoader keeps the place of a loader over our sampler, whether or not steps are counted."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from torchdata import stateful_dataloader as stateful

from smddp.data import ElasticSampler


def make(workers: int) -> tuple[ElasticSampler, stateful.StatefulDataLoader]:
    sampler = ElasticSampler(333, global_batch=16, rank=1, world_size=2, accumulate=2, tail="short")
    return sampler, stateful.StatefulDataLoader(list(range(333)), batch_sampler=sampler, num_workers=workers)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("counts", [False, True], ids=["plain", "advancing"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.slow
def test_the_loaders_own_state_resumes_at_the_next_batch_again_and_again(workers: int, counts: bool) -> None:
    batches = list(make(0)[0])
    state = None
    seen: list[list[int]] = []
    for taken in (1, 7, 0, 10, len(batches)):
        sampler, loader = make(workers)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        iterator = iter(loader)
        assert sampler.consumed == len(seen) // 2 * 16
        for batch in islice(iterator, taken):
            seen.append(batch.tolist())
            if counts and len(seen) % 2 == 0:
                sampler.advance()
        state = loader.state_dict()
        del iterator
    assert seen == batches


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_the_samplers_state_alone_resumes_at_the_next_step() -> None:
    sampler, loader = make(2)
    list(islice(loader, 5))
    sampler.advance()
    resumed, again = make(2)
    resumed.load_state_dict(sampler.state_dict())
    assert [batch.tolist() for batch in again] == list(make(0)[0])[2:]


def test_samplers_and_their_iterators_are_stateful() -> None:
    sampler = ElasticSampler(333, global_batch=16)
    assert isinstance(sampler, stateful.stateful_dataloader.Stateful)
    assert isinstance(iter(sampler), stateful.stateful_dataloader.Stateful)
