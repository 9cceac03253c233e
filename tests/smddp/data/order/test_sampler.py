"""Every sample at its place, at any number of ranks, after any number of resumes."""

from __future__ import annotations

import json
import logging
from fractions import Fraction
from itertools import chain, cycle, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from smddp.data import ElasticSampler, EvaluationSampler, Permutation
from smddp.data.order.data_order import Tail


def all_ranks(world_size: int, size: int, **options: Any) -> list[ElasticSampler]:
    return [ElasticSampler(size, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def take_steps(samplers: list[ElasticSampler], steps: int | None = None) -> list[list[int]]:
    """Train that many steps, or to the end: what all ranks see each, micro-batch by micro-batch, rank by rank within.

    A micro-batch of weight 0 is of a rank that only takes part; of any other step the gradient must be the mean over
    the samples, which the sample's own number stands for here.
    """
    accumulate, shares = samplers[0].accumulate, samplers[0].accumulate * len(samplers)
    ahead = [list(sampler) for sampler in samplers]  # a loader may fetch the whole epoch ahead
    assert {len(each) for each in ahead} == {len(samplers[0])}
    seen = []
    for step in range(len(samplers[0]) // accumulate if steps is None else min(steps, len(samplers[0]) // accumulate)):
        batch, gradient = [], Fraction()
        for micro_batch in range(accumulate):
            for sampler, batches in zip(samplers, ahead, strict=True):
                indices = batches[step * accumulate + micro_batch]
                weight = Fraction(sampler.loss_weight(micro_batch)).limit_denominator(10**6)
                assert indices
                gradient += weight * Fraction(sum(indices), len(indices)) / shares
                batch += indices if weight else []
        assert gradient == Fraction(sum(batch), len(batch))
        seen.append(batch)
        for sampler in samplers:
            sampler.advance()
    return seen


def undisturbed(size: int, global_batch: int, seed: int, epoch: int, tail: Tail) -> list[list[int]]:
    """The global batches of an epoch, from the definition."""
    order = Permutation(size=size, seed=seed, epoch=epoch).permute(np.arange(size)).tolist()
    if tail == "drop":
        order = order[: size // global_batch * global_batch]
    if tail == "wrap":
        order = list(islice(cycle(order), -(-size // global_batch) * global_batch))
    return [order[start : start + global_batch] for start in range(0, len(order), global_batch)]


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, int, Tail, list[tuple[int, int, int]]]:
    """A size, a global batch, a tail, and lives: (world size, accumulate, steps taken before the next one)."""
    global_batch = draw(st.integers(1, 48))
    tail = draw(st.sampled_from(["drop", "short", "wrap"]))
    size = draw(st.integers(global_batch if tail == "drop" else 1, 40 * global_batch))
    divisors = [number for number in range(1, global_batch + 1) if global_batch % number == 0]
    lives = []
    for _ in range(draw(st.integers(1, 7))):
        world_size = draw(st.sampled_from([number for number in divisors if number <= 16]))
        accumulate = draw(st.sampled_from([n for n in divisors if global_batch // world_size % n == 0]))
        lives.append((world_size, accumulate, draw(st.integers(0, size // global_batch))))
    return size, global_batch, tail, lives


@given(run=runs(), seed=st.integers(), epoch=st.integers(0, 3))
@pytest.mark.slow
def test_any_schedule_of_world_sizes_and_resumes_gives_the_undisturbed_order(
    run: tuple[int, int, Tail, list[tuple[int, int, int]]], seed: int, epoch: int
) -> None:
    size, global_batch, tail, lives = run
    seen: list[list[int]] = []
    saved: dict[str, object] | None = None
    for number, (world_size, accumulate, steps) in enumerate(lives, start=1):
        samplers = all_ranks(
            world_size, size, global_batch=global_batch, accumulate=accumulate, seed=seed, tail=tail, fingerprint="f"
        )
        for sampler in samplers:
            if saved is not None:
                sampler.load_state_dict(json.loads(json.dumps(saved)))
            sampler.start_epoch(epoch)
        seen += take_steps(samplers, None if number == len(lives) else steps)
        assert samplers[0].consumed == len(list(chain.from_iterable(seen)))
        states = [sampler.state_dict() for sampler in samplers]
        assert states.count(states[0]) == world_size
        saved = states[0]

    assert seen == undisturbed(size, global_batch, seed, epoch, tail)
    assert samplers[0].steps_per_epoch == len(seen)
    assert (len(samplers[0]), list(samplers[0])) == (0, [])


def test_a_short_last_batch_is_cut_evenly_and_weighed() -> None:
    samplers = all_ranks(4, 14, global_batch=8, shuffle=False, tail="short")
    assert [list(sampler)[-1] for sampler in samplers] == [[8], [9, 10], [11], [12, 13]]
    assert [sampler.loss_weight(0) for sampler in samplers] == [1.0] * 4
    for sampler in samplers:
        sampler.advance()
    assert [sampler.loss_weight(0) for sampler in samplers] == [4 / 6, 8 / 6, 4 / 6, 8 / 6]


def test_a_rank_without_a_share_of_the_short_batch_takes_part_with_no_weight() -> None:
    samplers = all_ranks(2, 9, global_batch=8, accumulate=2, shuffle=False, tail="short")
    assert [list(sampler)[2:] for sampler in samplers] == [[[8], [8]], [[8], [8]]]
    for sampler in samplers:
        sampler.advance()
    assert [[sampler.loss_weight(index) for index in (0, 1)] for sampler in samplers] == [[0, 0], [0, 4]]


def test_a_wrapped_last_batch_ends_with_the_first_samples() -> None:
    sampler = ElasticSampler(7, global_batch=3, shuffle=False, tail="wrap")
    assert list(sampler) == [[0, 1, 2], [3, 4, 5], [6, 0, 1]]


@pytest.mark.parametrize(("tail", "last"), [("drop", [-5, -4, -3]), ("short", [-2, -1]), ("wrap", [-2, -1, -(2**63)])])
def test_the_largest_epoch_ends_like_any_other(tail: Tail, last: list[int]) -> None:
    size = 2**63
    sampler = ElasticSampler(size, global_batch=3, shuffle=False, tail=tail)
    sampler.load_state_dict({**sampler.state_dict(), "consumed": size // 3 * 3 - 3})
    assert list(sampler)[-1] == [size + index for index in last]


def test_an_epoch_longer_than_a_block_goes_on_without_a_gap() -> None:
    seen = list(chain.from_iterable(ElasticSampler(200_003, global_batch=1_000)))
    assert len(seen) == len(set(seen)) == 200_000


def test_the_epochs_differ_and_each_is_the_same_again() -> None:
    sampler = ElasticSampler(100, global_batch=10)
    first = list(sampler)
    sampler.start_epoch(1)
    second = list(sampler)
    sampler.start_epoch(0)
    assert list(sampler) == first != second


def test_without_a_shuffle_the_dataset_keeps_its_order() -> None:
    samplers = all_ranks(2, 9, global_batch=4, shuffle=False)
    assert [list(sampler) for sampler in samplers] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_iterating_consumes_nothing_and_advancing_does() -> None:
    sampler = ElasticSampler(20, global_batch=5, shuffle=False)
    ahead = iter(sampler)
    assert list(islice(ahead, 3))[-1] == [10, 11, 12, 13, 14]
    sampler.advance()
    assert sampler.consumed == 5
    assert next(ahead) == [15, 16, 17, 18, 19]  # the iterator under way is not disturbed
    assert next(iter(sampler)) == [5, 6, 7, 8, 9]


def test_starting_the_epoch_under_way_keeps_the_position() -> None:
    sampler = ElasticSampler(20, global_batch=5)
    sampler.start_epoch(2)
    sampler.advance()
    sampler.start_epoch(2)
    assert (sampler.epoch, sampler.consumed) == (2, 5)
    sampler.start_epoch(3)
    assert (sampler.epoch, sampler.consumed) == (3, 0)


def test_an_epoch_that_is_used_up_has_no_step_left() -> None:
    sampler = ElasticSampler(10, global_batch=5)
    sampler.advance()
    sampler.advance()
    assert (len(sampler), list(sampler)) == (0, [])
    with pytest.raises(ValueError, match=r"all 2 steps of epoch 0 are taken; call start_epoch\(1\)"):
        sampler.advance()


def test_the_workers_of_a_thousand_ranks_read_every_sample_once() -> None:
    size, workers = 300_007, 8
    reads = np.zeros(size, dtype=int)
    for sampler in all_ranks(1024, size, global_batch=8 * 1024, tail="short"):
        batches = list(sampler)
        for worker in range(workers):
            for indices in batches[worker::workers]:  # DataLoader's rule
                np.add.at(reads, indices, 1)  # a repeat within the micro-batch counts too
    assert reads.min() == reads.max() == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_data_loader_takes_it(workers: int) -> None:
    sampler = ElasticSampler(64, global_batch=16, rank=1, world_size=2, accumulate=2)
    loader = DataLoader(list(range(64)), batch_sampler=sampler, num_workers=workers)  # type: ignore[arg-type]
    assert len(loader) == 8
    assert [batch.tolist() for batch in loader] == list(sampler)


@pytest.mark.parametrize(("global_batch", "nearest"), [(100, "96 and 102"), (7, "6 and 12"), (5, "6")])
def test_a_global_batch_that_does_not_divide_names_the_nearest_that_do(global_batch: int, nearest: str) -> None:
    with pytest.raises(ValueError, match=rf"3 \* 2 = 6; the nearest are {nearest}$"):
        ElasticSampler(1000, global_batch=global_batch, world_size=3, accumulate=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0, "global_batch": 1}, "size is 0"),
        ({"size": 8, "global_batch": 0}, r"\(batch_size\) is 0: a step has at least one sample"),
        ({"size": 10, "global_batch": 12}, "only 10 samples"),
        ({"size": 10, "global_batch": 2, "rank": 2, "world_size": 2}, "ranks go from 0 to world_size - 1"),
        ({"size": 10, "global_batch": 2, "rank": -1}, "ranks go from 0 to world_size - 1"),
        ({"size": 10, "global_batch": 2, "world_size": 0}, "ranks go from 0 to world_size - 1"),
        ({"size": 10, "global_batch": 2, "accumulate": 0}, "at least one micro-batch"),
        ({"size": 10, "global_batch": 2, "tail": "keep"}, "one of 'drop', 'short', 'wrap'"),
    ],
)
def test_refuses_numbers_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ElasticSampler(**arguments)


def test_says_once_what_the_tail_loses(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        samplers = all_ranks(4, 103, global_batch=20)
        for sampler in samplers:
            list(sampler)
    assert [record.getMessage() for record in caplog.records] == [
        "an epoch is 5 steps of 20 samples; the last 3 of its order are dropped (103 samples in all)"
    ]


def test_says_what_becomes_of_the_tail(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        ElasticSampler(103, global_batch=20, tail="short")
        ElasticSampler(103, global_batch=20, tail="wrap")
        ElasticSampler(100, global_batch=20, tail="wrap")
    assert [record.getMessage().partition("; ")[2] for record in caplog.records] == [
        "the last 3 of its order are a smaller batch (103 samples in all)",
        "the last 3 of its order are filled up with its first to another batch (103 samples in all)",
    ]


@pytest.mark.parametrize("consumed", [5, 20, 21])
def test_the_end_of_a_short_last_batch_is_a_place(consumed: int) -> None:
    sampler = ElasticSampler(21, global_batch=5, tail="short")
    sampler.load_state_dict({**sampler.state_dict(), "consumed": consumed})
    assert (sampler.consumed, len(sampler)) == (consumed, (21 - consumed + 4) // 5)


def test_a_position_saved_before_there_were_tails_and_fingerprints_still_counts() -> None:
    sampler = ElasticSampler(20, global_batch=5, fingerprint="abc")
    old = {"algorithm": 1, "seed": 0, "size": 20, "global_batch": 5, "shuffle": True, "epoch": 3, "consumed": 10}
    sampler.load_state_dict(old)
    assert (sampler.epoch, sampler.consumed) == (3, 10)


def test_a_position_in_another_kind_of_data_is_refused() -> None:
    sampler = ElasticSampler(20, global_batch=5)
    in_shards = {**sampler.state_dict(), "shards": 1, "window": 9, "consumed": 10}
    with pytest.raises(ValueError, match=r"has shards, window, .* another kind of data; resume with that kind"):
        sampler.load_state_dict(in_shards)
    assert sampler.consumed == 0


def test_a_position_in_data_that_changed_is_refused() -> None:
    state = ElasticSampler(20, global_batch=5, fingerprint="abc").state_dict()
    with pytest.raises(ValueError, match=r"the data changed: its fingerprint was abc .* is xyz now; resume with"):
        ElasticSampler(20, global_batch=5, fingerprint="xyz").load_state_dict(state)


def test_a_fingerprint_that_cannot_be_compared_is_said(caplog: pytest.LogCaptureFixture) -> None:
    state = ElasticSampler(20, global_batch=5, fingerprint="abc").state_dict()
    ElasticSampler(20, global_batch=5).load_state_dict(state)
    assert "a change goes unnoticed" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": 2}, "algorithm=2"),
        ({"seed": 1}, "has seed=1, this run seed=0"),
        ({"size": 21}, "has size=21, this run size=20"),
        ({"global_batch": 4}, "resume with the same global_batch"),
        ({"shuffle": False}, "has shuffle=False, this run shuffle=True"),
        ({"tail": "wrap"}, "has tail='wrap', this run tail='drop'"),
        ({"seed": None}, "has seed=None"),
        ({"epoch": -1}, "epoch=-1"),
        ({"epoch": "1"}, "epoch='1'"),
        ({"consumed": 3}, "multiple of the global batch, 5, from 0 to 20"),
        ({"consumed": 25}, "consumed=25"),
        ({"consumed": -5}, "consumed=-5"),
        ({"consumed": 5.0}, "consumed=5.0"),
    ],
)
def test_refuses_a_position_in_another_order(change: dict[str, object], message: str) -> None:
    sampler = ElasticSampler(20, global_batch=5)
    sampler.advance()
    with pytest.raises(ValueError, match=message):
        sampler.load_state_dict({**sampler.state_dict(), **change})
    assert (sampler.epoch, sampler.consumed) == (0, 5)


@given(size=st.integers(0, 300), batch_size=st.integers(1, 40), world_size=st.integers(1, 20))
def test_evaluation_sees_every_sample_once(size: int, batch_size: int, world_size: int) -> None:
    samplers = [
        EvaluationSampler(size, batch_size=batch_size, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    batches = [list(sampler) for sampler in samplers]
    assert list(chain.from_iterable(chain.from_iterable(batches))) == list(range(size))
    assert [len(each) for each in batches] == [len(sampler) for sampler in samplers]
    assert max(map(len, batches)) - min(map(len, batches)) <= 1
    assert all(1 <= len(batch) <= batch_size for batch in chain.from_iterable(batches))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": -1, "batch_size": 1}, "size is -1"),
        ({"size": 1, "batch_size": 0}, "at least one sample"),
        ({"size": 1, "batch_size": 1, "rank": 1}, "ranks go from 0"),
    ],
)
def test_evaluation_refuses_numbers_that_do_not_fit(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvaluationSampler(**arguments)


def test_numbers_of_numpy_give_a_position_in_plain_ints() -> None:
    options = {"global_batch": np.int64(10), "rank": np.int32(0), "world_size": np.uint8(1), "seed": np.int64(3)}
    sampler = ElasticSampler(np.int64(100), accumulate=np.int64(2), **options)
    sampler.start_epoch(np.int64(1))
    sampler.advance()
    plain = ElasticSampler(100, global_batch=10, accumulate=2, seed=3)
    plain.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert (type(sampler.consumed), type(sampler.epoch)) == (int, int)
    assert list(plain) == list(sampler)
    assert list(EvaluationSampler(np.int64(5), batch_size=np.int64(2))) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("name", ["global_batch", "rank", "world_size", "accumulate", "seed"])
def test_a_number_that_is_not_whole_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is 1.0: give a whole number$"):
        ElasticSampler(100, **{"global_batch": 10, name: 1.0})
