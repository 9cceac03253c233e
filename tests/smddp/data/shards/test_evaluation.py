"""Evaluation data in shards: every record once."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from smddp.data.shards import ShardedDataset, ShardEvaluation
from tests.smddp.data.shards.by_hand import MemorySource, number_of, numbered


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 9),
)
def test_every_record_comes_once_over_all_ranks(sizes: list[int], batch_size: int, world_size: int) -> None:
    source = MemorySource(numbered(sizes))
    dataset = ShardedDataset(source)
    ranks = [ShardEvaluation(dataset, batch_size=batch_size, rank=r, world_size=world_size) for r in range(world_size)]
    batches = [list(rank) for rank in ranks]
    assert [len(rank) for rank in ranks] == [len(each) for each in batches]
    records = chain.from_iterable(chain.from_iterable(batches))
    assert [number_of(record) for record in records] == list(range(sum(sizes)))
    assert source.open_files == 0


def test_a_loader_takes_it_and_leaves_no_file_open() -> None:
    source = MemorySource(numbered([50, 50]))
    dataset = ShardedDataset(source, decode=lambda fields: fields["id"])
    loader = DataLoader(dataset.decoder, batch_sampler=ShardEvaluation(dataset, batch_size=30))  # type: ignore[arg-type]
    assert [len(batch) for batch in loader] == [30, 30, 30, 10]
    for _ in loader:
        break
    assert source.open_files == 0


def test_refuses_numbers_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        ShardEvaluation(ShardedDataset(MemorySource(numbered([5]))), batch_size=0)
