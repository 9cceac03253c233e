"""The place of an iterator under way: saved where it was given out, and loaded on as many ranks or on others."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.data import ElasticSampler


@given(given_out=st.integers(0, 44), accumulate=st.sampled_from([1, 2, 4]))
def test_goes_on_with_the_next_one_and_counts_the_steps_before(given_out: int, accumulate: int) -> None:
    def sampler() -> ElasticSampler:
        return ElasticSampler(83, global_batch=8, accumulate=accumulate, seed=3, tail="short")

    batches = list(sampler())
    first = iter(sampler())
    taken = list(islice(first, given_out))
    second = sampler()
    left = iter(second)
    left.load_state_dict(first.state_dict())
    assert taken + list(left) == batches
    assert second.consumed == min(83, len(taken) // accumulate * 8)


def test_between_two_steps_the_number_of_ranks_may_change() -> None:
    one = iter(ElasticSampler(80, global_batch=8, accumulate=2))
    list(islice(one, 6))
    many = [ElasticSampler(80, global_batch=8, rank=rank, world_size=4) for rank in range(4)]
    found = []
    for sampler in many:
        iterator = iter(sampler)
        iterator.load_state_dict(one.state_dict())
        found += next(iterator)
        assert sampler.consumed == 24
    assert found == next(one) + next(one)


def test_inside_a_step_it_may_not() -> None:
    one = iter(ElasticSampler(80, global_batch=8, accumulate=2))
    next(one)
    other = iter(ElasticSampler(80, global_batch=8, world_size=4))
    with pytest.raises(ValueError, match="2 micro-batches on each of 1 ranks, this run has 1 on each of 4"):
        other.load_state_dict(one.state_dict())
