"""What PyTorch's hooks tell of a rank's collectives."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from smddp.watch.collective_log import CollectiveLog


@pytest.fixture
def log() -> Iterator[CollectiveLog]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    log = CollectiveLog()
    yield log
    log.end()
    dist.destroy_process_group()


def test_the_last_collective_is_told_with_its_shape_and_type(log: CollectiveLog) -> None:
    assert log.begin()
    assert (log.count, log.last, log.is_inside(in_call=True)) == (0, "", False)
    dist.all_reduce(torch.ones(2, 3))
    assert (log.count, log.last, log.is_inside(in_call=True)) == (1, "all_reduce of float32 [2, 3]", False)
    dist.barrier()
    assert (log.count, log.last, log.is_inside(in_call=True)) == (2, "barrier", False)
    log.end()
    dist.barrier()
    assert log.count == 2


def test_no_tensor_is_kept_once_it_is_described(log: CollectiveLog) -> None:
    log.begin()
    tensor = torch.ones(2)
    kept = weakref.ref(tensor)
    dist.all_reduce(tensor)
    assert not log.is_inside(in_call=False)
    assert log.last == "all_reduce of float32 [2]"
    del tensor
    gc.collect()
    assert kept() is None


def test_a_collective_that_raises_is_over(log: CollectiveLog) -> None:
    log.begin()
    with pytest.raises(RuntimeError):
        dist.reduce_scatter_tensor(torch.ones(3), torch.ones(5))
    assert not log.is_inside(in_call=False)


def test_without_a_group_there_is_nothing_to_note() -> None:
    log = CollectiveLog()
    assert not log.begin()
    log.end()
    assert (log.count, log.is_inside(in_call=True)) == (0, False)
