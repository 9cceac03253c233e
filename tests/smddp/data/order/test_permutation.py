"""The shuffle is a bijection, the same for ever, and not visibly anything but random."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_hexdigest

from smddp.data import Permutation
from smddp.data.order.data_order import ALGORITHM

VECTOR_10 = [0, 1, 5, 4, 3, 6, 2, 9, 8, 7]
VECTOR_12 = [2, 4, 11, 6, 5, 7, 3, 10, 9, 8, 0, 1]
WHOLE_1000003 = "200912bb46529b397bcb2bc535d5431f"
VECTORS_AT = [
    (60000, 0, 0, [2682, 29192, 49587, 12664]),
    (10000000000, 1, 1, [4581021204, 187592208, 10266117, 250010570]),
    (9223372036854775808, -1, 12, [5483119939493412996, 9067341521806012174, 4914040527504583987, 8910444367611396077]),
]


def order(size: int, **key: int) -> list[int]:
    return Permutation(size=size, **key).permute(np.arange(size)).tolist()


@given(size=st.integers(1, 3000), seed=st.integers(), epoch=st.integers(0))
def test_every_sample_has_exactly_one_position(size: int, seed: int, epoch: int) -> None:
    assert sorted(order(size, seed=seed, epoch=epoch)) == list(range(size))


@pytest.mark.parametrize("size", [2**16, 2**17 + 1, 999_983])
def test_a_large_order_is_a_bijection_too(size: int) -> None:
    seen = np.zeros(size, dtype=bool)
    seen[Permutation(size=size, seed=1).permute(np.arange(size))] = True
    assert seen.all()


@given(size=st.integers(1, 2**63), data=st.data())
def test_neighbours_of_any_size_stay_inside_and_apart(size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size - 1))
    positions = np.array(range(start, min(size, start + 100)), dtype=np.uint64)
    samples = Permutation(size=size).permute(positions)
    assert len(set(samples.tolist())) == len(positions)
    assert 0 <= samples.min() <= samples.max() < size


@given(
    size=st.integers(1, 2**40),
    positions=st.lists(st.integers(0, 2**40), min_size=1, max_size=50),
)
def test_a_position_gives_the_same_sample_alone_and_in_a_block(size: int, positions: list[int]) -> None:
    permutation = Permutation(size=size, seed=7)
    block = np.array(positions) % size
    together = permutation.permute(block)
    assert together.tolist() == [int(permutation.permute(position)) for position in block]
    assert permutation.permute(block.reshape(1, -1)).tolist() == [together.tolist()]


def test_the_order_never_changes() -> None:
    """Checkpoints rely on these: another result is another ALGORITHM."""
    assert ALGORITHM == 1
    assert order(10, seed=0, epoch=0) == VECTOR_10
    assert order(12, seed=2026, epoch=3) == VECTOR_12
    for size, seed, epoch, expected in VECTORS_AT:
        positions = np.array([0, 1, size // 2, size - 1], dtype=np.uint64)
        assert Permutation(size=size, seed=seed, epoch=epoch).permute(positions).tolist() == expected
    whole = Permutation(size=1_000_003, seed=1, epoch=2).permute(np.arange(1_000_003))
    assert xxh3_128_hexdigest(whole.astype("<i8").tobytes()) == WHOLE_1000003


def test_the_positions_are_left_as_they_were() -> None:
    positions = np.arange(100, dtype=np.uint64)
    Permutation(size=100).permute(positions)
    assert positions.tolist() == list(range(100))


def test_seed_and_epoch_are_not_added_up() -> None:
    orders = [order(100, seed=seed, epoch=epoch) for seed in range(8) for epoch in range(8)]
    assert len({tuple(each) for each in orders}) == 64


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.slow
def test_all_orders_of_a_few_samples_are_equally_likely(size: int) -> None:
    seeds = 200 * math.factorial(size)
    counts = Counter(tuple(order(size, seed=seed)) for seed in range(min(seeds, 6000)))
    expected = min(seeds, 6000) / math.factorial(size)
    chi_squared = sum((counts[each] - expected) ** 2 / expected for each in itertools.permutations(range(size)))
    freedom = math.factorial(size) - 1
    assert chi_squared < freedom + 6 * math.sqrt(2 * freedom)


def test_any_sample_is_equally_likely_at_any_position() -> None:
    size, seeds = 16, 3000
    counts = np.zeros((size, size))
    for seed in range(seeds):
        counts[np.arange(size), order(size, seed=seed)] += 1
    chi_squared = ((counts - seeds / size) ** 2 / (seeds / size)).sum()
    freedom = (size - 1) ** 2
    assert chi_squared < freedom + 6 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("lag", [1, 2, 1000])
def test_neighbours_are_not_correlated(lag: int) -> None:
    samples = np.array(order(100_000, seed=5), dtype=float)
    assert abs(np.corrcoef(samples[:-lag], samples[lag:])[0, 1]) < 5 / math.sqrt(len(samples))


def test_two_epochs_are_not_correlated() -> None:
    first, second = (np.array(order(100_000, seed=5, epoch=epoch), dtype=float) for epoch in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(len(first))


def chi_squared_of_pairs(first: np.ndarray, second: np.ndarray, size: int, bins: int = 32) -> float:
    """How far pairs of numbers below size are from any pair being as likely, in standard deviations."""
    counts = np.zeros((bins, bins))
    np.add.at(counts, (first * bins // size, second * bins // size), 1)
    expected = len(first) / bins**2
    freedom = (bins - 1) ** 2
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("size", [2**17, 131_101, 362 * 362])
def test_no_part_of_an_epoch_prefers_a_part_of_the_data(size: int) -> None:
    samples = np.array(order(size, seed=11, epoch=4))
    assert chi_squared_of_pairs(np.arange(size), samples, size) < 6
    assert chi_squared_of_pairs(samples[:-1], samples[1:], size) < 6
    assert chi_squared_of_pairs(samples, np.array(order(size, seed=11, epoch=5)), size) < 6


CHANGES = [
    *[((0, 0), (1 << bit, 0)) for bit in (0, 1, 31, 63, 200)],
    *[((7, 0), (7, 1 << bit)) for bit in (0, 1, 10)],
    ((5, 5), (4, 6)),
    ((1, 0), (-1, 0)),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_any_change_of_seed_or_epoch_flips_each_bit_of_half_of_the_samples(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    positions, bits = np.arange(2**14), 40
    first, second = (
        Permutation(size=2**bits, seed=seed, epoch=epoch).permute(positions) for seed, epoch in (before, after)
    )
    flipped = ((first ^ second)[:, np.newaxis] >> np.arange(bits)) & 1
    assert np.abs(flipped.mean(axis=0) - 0.5).max() < 6 * 0.5 / math.sqrt(len(positions))


@pytest.mark.parametrize("bit", [0, 1, 7, 20, 39])
def test_a_change_of_the_position_flips_each_bit_of_half_of_the_samples(bit: int) -> None:
    positions, bits = np.arange(2**14), 40
    permutation = Permutation(size=2**bits, seed=3)
    flipped = (permutation.permute(positions) ^ permutation.permute(positions ^ (1 << bit)))[:, np.newaxis]
    rates = ((flipped >> np.arange(bits)) & 1).mean(axis=0)
    assert np.abs(rates - 0.5).max() < 6 * 0.5 / math.sqrt(len(positions))


def test_as_many_samples_stay_in_place_as_by_chance() -> None:
    orders = 2000
    fixed = sum(int((np.array(order(50, seed=seed)) == np.arange(50)).sum()) for seed in range(orders))
    assert abs(fixed - orders) < 6 * math.sqrt(orders)  # of each order one, on average, with variance one


@pytest.mark.parametrize("size", [0, -1, 2**63 + 1])
def test_refuses_an_impossible_size(size: int) -> None:
    with pytest.raises(ValueError, match="1 to 2\\*\\*63"):
        Permutation(size=size)


@pytest.mark.parametrize("position", [-1, 10])
def test_refuses_a_position_outside(position: int) -> None:
    with pytest.raises(ValueError, match="from 0 to 9"):
        Permutation(size=10).permute(np.array([3, position]))
