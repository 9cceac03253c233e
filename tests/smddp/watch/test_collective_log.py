"""What PyTorch's hooks tell of a rank's collectives."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace

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
    assert (log.entered(), log.last(in_call=True)) == ({"": 0}, ("", 0, "", False))
    dist.all_reduce(torch.ones(2, 3))
    assert (log.entered(), log.last(in_call=True)) == ({"": 1}, ("", 1, "all_reduce of float32 [2, 3]", False))
    dist.barrier()
    assert (log.entered(), log.last(in_call=True)) == ({"": 2}, ("", 2, "barrier", False))
    log.end()
    dist.barrier()
    assert log.entered() == {"": 2}


def test_groups_are_noted_from_their_creation_to_their_end(log: CollectiveLog) -> None:
    early = dist.new_group([0])
    log.begin()
    late = dist.new_group([0], group_desc="experts")
    lone = dist.new_group([0], use_local_synchronization=True)
    told = set()
    for number, (group, name) in enumerate([(early, ""), (late, "experts "), (lone, "")]):
        dist.all_reduce(torch.ones(number + 1), group=group)
        key, *last = log.last(in_call=False)
        assert last == [1, f"all_reduce of float32 [{number + 1}] in the group {name}of ranks 0", False]
        assert log.entered()[key] == 1
        told.add(key)
    assert len(told) == 3
    assert "" not in told
    dist.destroy_process_group(late)
    del late
    assert len(log.entered()) == 2 + 1  # the default group, too
    log.end()
    dist.all_reduce(torch.ones(1), group=early)
    dist.new_group([0])
    assert sorted(log.entered().values()) == [0, 1, 1]


def test_of_several_collectives_one_that_has_not_ended_is_told(log: CollectiveLog) -> None:
    log.begin()
    group = dist.new_group([0])
    dist.all_reduce(torch.ones(2), group=group)
    [key] = log.entered().keys() - {""}
    waiting = next(each for each in log._groups if each.key == key)
    waiting._issued = [1, SimpleNamespace(is_completed=lambda: False)]
    dist.barrier()
    assert log.last(in_call=False) == (key, 1, "all_reduce of float32 [2] in the group of ranks 0", True)
    waiting._issued = [1, SimpleNamespace(is_completed=lambda: True)]
    assert log.last(in_call=False) == ("", 1, "barrier", False)


def test_no_tensor_is_kept_once_it_is_described(log: CollectiveLog) -> None:
    log.begin()
    tensor = torch.ones(2)
    kept = weakref.ref(tensor)
    dist.all_reduce(tensor)
    assert not log.is_inside(in_call=False)
    assert log.last(in_call=False)[2] == "all_reduce of float32 [2]"
    del tensor
    deadline = time.monotonic() + 10  # gloo's own thread lets go of it a moment later
    while kept() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert kept() is None


def test_a_collective_that_raises_is_over(log: CollectiveLog) -> None:
    log.begin()
    with pytest.raises(RuntimeError):
        dist.reduce_scatter_tensor(torch.ones(3), torch.ones(5))
    assert not log.is_inside(in_call=False)


@pytest.mark.parametrize("of_default", [True, False])
def test_a_collective_that_differs_from_another_ranks_waits_before_it_runs(
    log: CollectiveLog, of_default: bool
) -> None:
    log.begin()
    group = None if of_default else dist.new_group([0])
    [tag] = [int(key or "0", 16) for key in log.entered() if (key == "") == of_default]
    log.end()
    own, other = Fingerprints.create(), Fingerprints.create()
    assert own is not None
    assert other is not None
    own.find_others({os.getpid()})
    other.differ(tag, 2, 0)
    log.begin(own)
    dist.all_reduce(torch.ones(3), group=group)
    tensor = torch.ones(4)
    rank = threading.Thread(target=dist.all_reduce, args=(tensor,), kwargs={"group": group})
    rank.start()
    deadline = time.monotonic() + 60
    while log.last(in_call=False)[1] < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    rank.join(0.5)
    assert rank.is_alive()
    # The main thread may be elsewhere, as here, where it waits for the thread that is held.
    _, number, name, is_inside = log.last(in_call=False)
    assert (number, name.partition(" in ")[0], is_inside) == (2, "all_reduce of float32 [4]", True)
    log.release()
    rank.join(60)
    assert not rank.is_alive()
    assert not log.is_inside(in_call=False)


def test_a_digest_is_of_all_collectives_of_a_group(log: CollectiveLog) -> None:
    log.begin()
    sizes = [1] * 64 + [2] * 64 + [1] * 64
    groups = [dist.new_group([0]) for _ in range(3)]
    for group, others in zip(groups, (sizes, sizes, [*sizes[:70], 3, *sizes[71:]]), strict=True):
        for size in others:
            dist.all_reduce(torch.ones(size), group=group)
    dist.barrier()
    first, second, third = log.digests().values()
    assert first == second
    assert list(first) == [192]  # the newest multiple of 64
    assert first != third
    for _ in range(192, 1024 + 64):
        dist.all_reduce(torch.ones(1), group=groups[0])
    assert list(next(iter(log.digests().values()))) == [1024, 1088]


def test_without_a_group_there_is_nothing_to_note() -> None:
    log = CollectiveLog()
    assert not log.begin()
    log.end()
    assert (log.entered(), log.is_inside(in_call=True)) == ({}, False)
