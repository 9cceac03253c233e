"""What PyTorch's hooks tell of a rank's collectives."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from smddp.watch.collective_log import CollectiveLog
from smddp.watch.fingerprints import Fingerprints

pytestmark = pytest.mark.skipif(not hasattr(dist.ProcessGroup, "register_pre_hook"), reason="this PyTorch has no hooks")


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


def test_a_collective_that_differs_from_another_ranks_waits_before_it_runs(log: CollectiveLog) -> None:
    own, other = Fingerprints.create(), Fingerprints.create()
    assert own is not None
    assert other is not None
    own.find_others({os.getpid()})
    other.differ(2, 0)
    log.begin(own)
    dist.all_reduce(torch.ones(3))
    tensor = torch.ones(4)
    rank = threading.Thread(target=dist.all_reduce, args=(tensor,))
    rank.start()
    rank.join(0.5)
    assert rank.is_alive()
    assert (log.last, log.is_inside(in_call=True)) == ("all_reduce of float32 [4]", True)
    log.release()
    rank.join(60)
    assert not rank.is_alive()


def test_without_a_group_there_is_nothing_to_note() -> None:
    log = CollectiveLog()
    assert not log.begin()
    log.end()
    assert (log.count, log.is_inside(in_call=True)) == (0, False)
