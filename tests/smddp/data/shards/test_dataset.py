"""A dataset of shards by itself, and what a decoder refuses."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from smddp.data.shards import ShardedDataset, ShardIndex
from smddp.errors import DataError
from tests.smddp.data.shards.by_hand import MemorySource, fill, numbered


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_gives_all_samples_as_they_lie(tmp_path: Path, workers: int) -> None:
    dataset = ShardedDataset(fill(tmp_path, numbered([7, 0, 9], kind="tar")), decode=lambda fields: int(fields["cls"]))
    assert len(dataset) == 16
    samples = list(DataLoader(dataset, batch_size=None, num_workers=workers))
    assert sorted(samples) == list(range(16))
    assert workers > 1 or samples == list(range(16))


def test_without_a_decode_a_sample_is_the_record() -> None:
    dataset = ShardedDataset(MemorySource({"a.jsonl": b'{"text": "x"}\n', "b.jsonl": b'{"text": "y"}\n'}))
    assert list(dataset) == [{"text": "x"}, {"text": "y"}]


def test_an_iteration_that_is_left_leaves_no_file_open() -> None:
    source = MemorySource(numbered([9]))
    samples = iter(ShardedDataset(source))
    next(samples)
    assert source.open_files == 1
    del samples
    assert source.open_files == 0


def test_adopts_the_index_of_another_rank_if_it_sees_the_same_shards() -> None:
    files = numbered([5, 6])
    index = ShardIndex.of(MemorySource(files))
    source = MemorySource(files)
    dataset = ShardedDataset(source)
    dataset.adopt(index)
    assert (len(dataset), source.opened) == (11, [])
    with pytest.raises(DataError, match="is missing"):
        ShardedDataset(MemorySource(numbered([5]))).adopt(index)


def test_an_index_that_counts_other_records_is_noticed() -> None:
    files = numbered([5])
    dataset = ShardedDataset(MemorySource(files))
    value = dataset.index.to_json()
    value["shards"][0]["records"] = 6
    dataset.adopt(ShardIndex.from_json(value))
    with pytest.raises(DataError, match=r"part-000\.jsonl in memory ends after 5 records, and has 6 in the index"):
        list(dataset)


def test_refuses_to_give_a_sample_by_its_index() -> None:
    with pytest.raises(TypeError, match="give the DataLoader a ShardOrder as its batch_sampler"):
        ShardedDataset(MemorySource(numbered([5]))).decoder[3]  # type: ignore[index]


def test_an_error_of_decode_names_the_record_and_keeps_its_cause() -> None:
    dataset = ShardedDataset(MemorySource(numbered([5])), decode=lambda fields: 1 / (fields["id"] - 3))
    with pytest.raises(DataError, match=r"part-000\.jsonl, record 3 at byte \d+: decode raised ZeroDivisionError") as e:
        list(dataset)
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_goes_to_other_processes(tmp_path: Path) -> None:
    dataset = ShardedDataset(fill(tmp_path, numbered([5])))
    assert list(pickle.loads(pickle.dumps(dataset))) == list(dataset)


def test_refuses_a_limit_that_is_none() -> None:
    with pytest.raises(ValueError, match="largest_record is 0"):
        ShardedDataset("/nowhere", largest_record=0)
