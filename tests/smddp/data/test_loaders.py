"""What is drawn for a sample does not depend on who fetches it, nor on what was fetched before."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

from smddp.cluster import Cluster
from smddp.data import ElasticSampler
from smddp.data.loaders import InEpoch, Loaders, Seeded
from smddp.data.shards import ShardedDataset, ShardOrder
from smddp.distributed import join, leave
from tests.smddp.data.shards.by_hand import MemorySource, fill, numbered


class Draws(Dataset[tuple[int, float, float, float]]):
    """Each sample draws from every global generator."""

    name = "draws"
    offset = 0

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index + self.offset, torch.rand(()).item(), random.random(), float(np.random.rand())


class DrawsByBatch(Dataset[float]):
    def __len__(self) -> int:
        return 24

    def __getitems__(self, indices: list[int]) -> list[tuple[int, float]]:
        return [(index, torch.rand(()).item()) for index in indices]


def fetch(
    dataset: Dataset[object], *, workers: int, ranks: int = 1, seed: int = 3, epoch: int = 1, skip: int = 0
) -> dict[int, tuple[float, ...]]:
    """What was drawn for each sample, by sample."""
    drawn = {}
    for rank in range(ranks):
        order = ElasticSampler(24, global_batch=6, rank=rank, world_size=ranks, seed=seed)
        order.start_epoch(epoch)
        for _ in range(skip):
            order.advance()
        seeded = Seeded(dataset, seed)
        loader = DataLoader(
            seeded,
            batch_sampler=InEpoch(order, accumulate=1, dataset=seeded),
            num_workers=workers,
            collate_fn=lambda batch: batch,
            generator=torch.Generator(),
        )
        assert len(loader) == 4  # of the whole epoch, as torch's own
        drawn |= {sample: tuple(values) for batch in loader for sample, *values in batch}
    return drawn


@pytest.mark.slow
def test_workers_and_ranks_and_where_an_epoch_goes_on_make_no_difference() -> None:
    alone = fetch(Draws(), workers=1)
    assert sorted(alone) == list(range(24))
    assert all(len({values[place] for values in alone.values()}) == 24 for place in range(3))
    assert fetch(Draws(), workers=2) == alone
    assert fetch(Draws(), workers=1, ranks=3) == alone
    resumed = fetch(Draws(), workers=1, skip=2)
    assert resumed == {sample: alone[sample] for sample in resumed}


@pytest.mark.parametrize("other", [{"seed": 4}, {"epoch": 2}])
def test_another_seed_or_epoch_draws_anew(other: dict[str, int]) -> None:
    alone, anew = fetch(Draws(), workers=1), fetch(Draws(), workers=1, **other)
    assert not any(alone[sample] == anew[sample] for sample in alone)


def test_a_dataset_that_fetches_batches_is_seeded_for_each_batch() -> None:
    alone = fetch(DrawsByBatch(), workers=1)
    assert fetch(DrawsByBatch(), workers=2) == alone
    assert len(set(alone.values())) == 24


def test_a_subset_is_seeded_for_each_sample() -> None:
    part = Subset(Subset(Draws(), range(24)), range(23, -1, -1))
    alone = fetch(part, workers=1)
    assert len(set(alone.values())) == 24
    assert fetch(part, workers=1, ranks=3) == alone


def test_a_subset_of_a_dataset_that_fetches_batches_fetches_batches() -> None:
    assert fetch(Subset(DrawsByBatch(), range(24)), workers=1) == fetch(DrawsByBatch(), workers=1)


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_shards_draw_the_same_wherever_they_lie(tmp_path: Path, kind: str) -> None:
    def draws(location: Any) -> list[tuple[str, float]]:
        dataset = ShardedDataset(location, decode=lambda fields: (str(fields), torch.rand(()).item()))
        seeded = Seeded(dataset.decoder, 3)
        order = InEpoch(ShardOrder(dataset, global_batch=6), accumulate=1, dataset=seeded)
        loader = DataLoader(seeded, batch_sampler=order, num_workers=1, collate_fn=list)
        return [sample for batch in loader for sample in batch]

    files = {f"sub-\udcff/{name}": content for name, content in numbered([12, 12], kind=kind).items()}
    here = draws(MemorySource(files))
    assert len({drawn for _, drawn in here}) == 24
    assert draws(fill(tmp_path / "a", files)) == draws(fill(tmp_path / "moved" / "b", files)) == here


def evaluated(workers: int, **options: Any) -> list[Any]:
    loaders = Loaders(join(Cluster.detect({})), seed=3, pin_memory=False)
    made = loaders.evaluation(
        Draws(), batch_size=5, sharded_by_host=False, options={"num_workers": workers, "collate_fn": list, **options}
    )
    leave()
    assert (made.dataset.name, len(made.dataset), made.dataset[1][0]) == ("draws", 24, 1)  # type: ignore[attr-defined, arg-type]
    once, again = ([sample for batch in made for sample in batch] for _ in range(2))
    assert once == again
    return once


def test_an_evaluation_draws_the_same_each_time_with_any_number_of_workers() -> None:
    alone = evaluated(1)
    assert len({drawn for _, drawn, *_ in alone}) == 24
    assert evaluated(2) == alone
    assert not {drawn[1:] for drawn in alone} & set(fetch(Draws(), workers=1, epoch=0).values())


def _rename(_worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.offset = 100  # type: ignore[attr-defined]


def test_a_worker_init_fn_sees_the_users_dataset() -> None:
    assert [index for index, *_ in evaluated(1, worker_init_fn=_rename)] == list(range(100, 124))


def test_in_the_ranks_own_process_nothing_is_seeded() -> None:
    torch.manual_seed(5)
    expected = torch.rand(24).tolist()
    torch.manual_seed(5)
    drawn = fetch(Draws(), workers=0)
    assert [values[0] for values in drawn.values()] == expected


@pytest.mark.parametrize("change", [6, -6])
def test_an_evaluation_of_a_dataset_whose_length_has_changed_is_refused(change: int) -> None:
    data = list(range(24))
    loaders = Loaders(join(Cluster.detect({})), seed=3, pin_memory=False)
    made = loaders.evaluation(data, batch_size=5, sharded_by_host=False, options={})  # type: ignore[arg-type]
    leave()
    assert torch.cat(list(made)).tolist() == data
    data[24 + min(change, 0) :] = range(24, 24 + change)
    with pytest.raises(ValueError, match=rf"list has {24 + change} samples, and had 24 when .* call it again"):
        list(made)
