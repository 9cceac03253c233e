"""Hosts with parts of their own take the same steps, see each sample at most once, and notice when the parts change."""

from __future__ import annotations

import json
import logging
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.data import ElasticSampler
from smddp.data.order.data_order import Tail
from smddp.data.order.host_sharding import HostShardedSampler

Sample = tuple[int, int]
"""Host, and number in its part."""


def all_ranks(sizes: list[int], local_world_size: int = 1, **options: Any) -> list[HostShardedSampler]:
    return [
        HostShardedSampler(sizes, host=host, local_rank=local_rank, local_world_size=local_world_size, **options)
        for host in range(len(sizes))
        for local_rank in range(local_world_size)
    ]


def take_steps(samplers: list[HostShardedSampler], steps: int) -> list[set[Sample]]:
    """What all ranks see a step, without those who only take part; the weights must make it a mean over the samples."""
    accumulate = samplers[0].accumulate
    ahead = [list(sampler) for sampler in samplers]
    seen = []
    for step in range(min(steps, len(samplers[0]) // accumulate)):
        batch: list[Sample] = []
        weights: list[float] = []
        for sampler, batches in zip(samplers, ahead, strict=True):
            for micro_batch in range(accumulate):
                indices = batches[step * accumulate + micro_batch]
                weight = sampler.loss_weight(micro_batch)
                if weight:
                    batch += [(sampler.host, index) for index in indices]
                    weights += [weight / len(indices) / (len(samplers) * accumulate)] * len(indices)
        assert weights == pytest.approx([1 / len(batch)] * len(batch))
        assert len(batch) <= samplers[0].global_batch
        seen.append(set(batch))
        for sampler in samplers:
            sampler.advance()
    return seen


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[int], int, Tail, list[tuple[int, int, int]]]:
    """Sizes, a global batch, a tail, and lives: (ranks a host, accumulate, steps taken before the next one)."""
    hosts, per_host = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    tail: Tail = draw(st.sampled_from(["drop", "short", "wrap"]))
    least = per_host if tail == "drop" else 1
    sizes = draw(st.lists(st.integers(least, 15 * per_host), min_size=hosts, max_size=hosts))
    divisors = [number for number in range(1, per_host + 1) if per_host % number == 0]
    lives = []
    for _ in range(draw(st.integers(1, 7))):
        local_world_size = draw(st.sampled_from(divisors))
        accumulate = draw(st.sampled_from([n for n in divisors if per_host // local_world_size % n == 0]))
        lives.append((local_world_size, accumulate, draw(st.integers(0, 15))))
    return sizes, hosts * per_host, tail, lives


@given(run=runs(), seed=st.integers(), epoch=st.integers(0, 2), shuffle=st.booleans())
def test_ranks_of_the_same_hosts_may_change_within_an_epoch(
    run: tuple[list[int], int, Tail, list[tuple[int, int, int]]], seed: int, epoch: int, shuffle: bool
) -> None:
    sizes, global_batch, tail, lives = run
    options: dict[str, Any] = {"global_batch": global_batch, "seed": seed, "tail": tail, "shuffle": shuffle}
    alone = all_ranks(sizes, **options)
    for sampler in alone:
        sampler.start_epoch(epoch)
    undisturbed = take_steps(alone, 10**6)

    seen: list[set[Sample]] = []
    saved: dict[str, Any] | None = None
    for number, (local_world_size, accumulate, steps) in enumerate(lives, start=1):
        samplers = all_ranks(sizes, local_world_size, accumulate=accumulate, **options)
        for sampler in samplers:
            if saved is not None:
                sampler.load_state_dict(json.loads(json.dumps(saved)))
            sampler.start_epoch(epoch)
            assert len(sampler) == (samplers[0].steps_per_epoch - len(seen)) * accumulate
        seen += take_steps(samplers, 10**6 if number == len(lives) else steps)
        states = [sampler.state_dict() for sampler in samplers]
        assert states.count(states[0]) == len(samplers)
        saved = states[0]
    assert seen == undisturbed

    samples = list(chain.from_iterable(seen))
    assert all(0 <= index < sizes[host] for host, index in samples)
    least = min(sizes)
    per_host = global_batch // len(sizes)
    expected = {"drop": least // per_host * per_host, "short": least, "wrap": least}[tail]
    assert len(set(samples)) == expected * len(sizes)


def test_what_a_large_part_leaves_out_is_another_rest_each_epoch() -> None:
    sampler = all_ranks([10, 100], global_batch=20)[1]
    seen = set()
    for epoch in range(100):
        sampler.start_epoch(epoch)
        seen |= set(chain.from_iterable(sampler))
    assert seen == set(range(100))


def test_hosts_with_parts_of_one_size_have_orders_of_their_own() -> None:
    first, second = (list(chain.from_iterable(sampler)) for sampler in all_ranks([100, 100], global_batch=20))
    assert sorted(first) == sorted(second)
    assert first != second


def test_says_what_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        all_ranks([40, 60, 50], 2, global_batch=12)
    assert [record.getMessage() for record in caplog.records] == [
        "the hosts have 40 to 60 samples each: an epoch takes 40 of each, and leaves 30 of 150 out"
    ]


CHANGES = [
    ({"sizes": [40]}, "sharded over 1 host, and it is over 2 now"),
    ({"sizes": [40, 51]}, "host 1 had 51 samples, and it has 50 now"),
    ({"fingerprint": ["a", "c"]}, "host 1 had other data"),
    ({"sizes": None}, "every host had all of the data"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_refuses_a_position_of_other_hosts(change: dict[str, object], message: str) -> None:
    sampler = HostShardedSampler([40, 50], global_batch=10, host=0, fingerprints=["a", "b"])
    with pytest.raises(ValueError, match=rf"{message}.* no order over all .* on_change=\"restart\""):
        sampler.load_state_dict({**sampler.state_dict(), **change})


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_begins_the_epoch_anew_where_that_was_chosen(
    change: dict[str, object], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    samplers = all_ranks([40, 50], global_batch=10, fingerprints=["a", "b"], on_change="restart")
    for sampler in samplers:
        sampler.load_state_dict({**sampler.state_dict(), "epoch": 3, "consumed": 20, **change})
        assert (sampler.epoch, sampler.consumed, len(sampler)) == (3, 0, 8)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("epoch 3 begins anew")
    assert message in warnings[0]


def test_fingerprints_that_cannot_be_compared_are_said(caplog: pytest.LogCaptureFixture) -> None:
    state = HostShardedSampler([40], global_batch=10, host=0, fingerprints=["a"]).state_dict()
    HostShardedSampler([40], global_batch=10, host=0, fingerprints=["a"]).load_state_dict(state)
    assert not caplog.records
    HostShardedSampler([40], global_batch=10, host=0).load_state_dict(state)
    assert "a change goes unnoticed" in caplog.text


def test_a_new_start_is_not_for_another_order() -> None:
    sampler = HostShardedSampler([40, 50], global_batch=10, host=0, on_change="restart")
    with pytest.raises(ValueError, match="has seed=5, this run seed=0"):
        sampler.load_state_dict({**sampler.state_dict(), "sizes": [40], "seed": 5})


def test_data_that_every_host_had_may_be_sharded_if_the_epoch_begins_anew() -> None:
    whole = ElasticSampler(100, global_batch=10, fingerprint="f")
    whole.start_epoch(2)
    whole.advance()
    sampler = HostShardedSampler([50, 50], global_batch=10, host=0, fingerprints=["a", "b"], on_change="restart")
    sampler.load_state_dict(whole.state_dict())
    assert (sampler.epoch, sampler.consumed) == (2, 0)


def test_a_sampler_of_whole_data_refuses_a_position_in_parts() -> None:
    state = HostShardedSampler([50, 50], global_batch=10, host=0).state_dict()
    with pytest.raises(ValueError, match="has sizes, which one in these data has not"):
        ElasticSampler(100, global_batch=10).load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": [10, 0], "global_batch": 2}, "host 1 has 0 samples"),
        ({"sizes": [10, 4], "global_batch": 10}, "host 1 has 4 samples.* at most 8"),
        ({"sizes": [10, 10], "global_batch": 5}, "must be divisible"),
        ({"sizes": [10, 10], "global_batch": 2, "host": 2}, "host is 2"),
        ({"sizes": [], "global_batch": 2}, "sizes are of 0 hosts"),
        ({"sizes": [10], "global_batch": 2, "local_rank": 1}, "local_rank is 1"),
        ({"sizes": [10], "global_batch": 2, "fingerprints": []}, "0 fingerprints and 1 sizes"),
        ({"sizes": [10], "global_batch": 2, "on_change": "ignore"}, "one of 'refuse', 'restart'"),
        ({"sizes": [10], "global_batch": 2, "tail": "keep"}, "one of 'drop', 'short', 'wrap'"),
    ],
)
def test_refuses_numbers_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HostShardedSampler(**{"host": 0, **arguments})
