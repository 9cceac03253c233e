"""What PyTorch's hooks tell of a rank's collectives."""

from __future__ import annotations

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
    assert (log.count, log.last, log.is_inside) == (0, "", False)
    dist.all_reduce(torch.ones(2, 3))
    assert (log.count, log.last, log.is_inside) == (1, "all_reduce of float32 [2, 3]", False)
    dist.barrier()
    assert (log.count, log.last, log.is_inside) == (2, "barrier", False)
    log.end()
    dist.barrier()
    assert log.count == 2


def test_without_a_group_there_is_nothing_to_note() -> None:
    log = CollectiveLog()
    assert not log.begin()
    log.end()
    assert (log.count, log.is_inside) == (0, False)
