"""Ranks end well though a worker of gloo's still holds tensors, and something still holds the group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = """
import os, threading, time, weakref
from pathlib import Path
import torch
import torch.distributed as dist
import smddp
from smddp.distributed import gloo_drain

way = os.environ["WAY"]
gloo_drain._SECONDS = 60.0  # a busy machine

def slowly(_):
    # Who drops a tensor comes here; a worker that comes back after Python has begun to end aborts the process.
    if threading.current_thread() is not threading.main_thread():
        print("a worker drops", flush=True)
        time.sleep(0.3 if way == "failure" else 0.1)  # longer than a failed rank takes to tell the others

def begin(group):
    def tensor():
        made = torch.ones(3)
        watched.append(weakref.ref(made, slowly))
        return made

    rank = dist.get_rank()
    dist.all_reduce(tensor(), group=group, async_op=True)
    dist.broadcast(tensor(), src=0, group=group, async_op=True)
    dist.all_gather([tensor(), tensor()], tensor(), group=group, async_op=True)
    dist.gather(tensor(), [tensor(), tensor()] if rank == 0 else None, dst=0, group=group, async_op=True)
    dist.barrier(group=group, async_op=True)
    handles.append(dist.all_reduce(tensor(), group=group, async_op=True))

def main():
    group = dist.new_group() if way == "subgroup" else None
    models.append(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group))
    dist.barrier()
    begun = Path(__file__).with_name("begun")
    while dist.get_rank() == 1 and not begun.exists():  # rank 0 drops its own references first
        time.sleep(0.01)
    begin(group)
    begun.touch()
    if way == "failure":
        raise ValueError("a bad label")

watched, models, handles = [], [], []
if way == "own group":
    dist.init_process_group("gloo")
elif way not in ("run", "failure"):
    smddp.join()
if way in ("run", "failure"):
    smddp.run(main)
main()
if way in ("leave", "subgroup"):
    smddp.leave()
"""


@pytest.mark.parametrize("way", ["run", "leave", "subgroup", "no leave", "own group", "failure"])
@pytest.mark.slow
def test_ranks_end_well_whatever_gloos_workers_hold(way: str, run_ranks: Callable[..., list[Any]]) -> None:
    ranks = run_ranks(PROGRAM, [{"WAY": way, "FORK_PYTHON_FINALIZES": "1"}] * 2)

    assert [rank.code for rank in ranks] == ([1, 1] if way == "failure" else [0, 0]), ranks
    assert "a worker drops" in ranks[0].printed
    assert "still under way" not in ranks[0].logged + ranks[1].logged


UNFINISHED = """
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
import smddp
from smddp.distributed import gloo_drain

first_has_ended = Path(__file__).with_name("first-has-ended")
gloo_drain._SECONDS = float(os.environ["SECONDS"])
smddp.join()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
dist.barrier()
if dist.get_rank() == 1:
    if os.environ["PEER"] == "dies":
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    while not first_has_ended.exists():
        time.sleep(0.01)
    sys.exit()
dist.all_reduce(torch.ones(3), async_op=True)  # rank 1 never joins it
began = time.monotonic()
gloo_drain.drain_gloo()
print(time.monotonic() - began, flush=True)
first_has_ended.touch()
os._exit(0)
"""


def test_a_collective_whose_other_rank_dies_ends_with_it(run_ranks: Callable[..., list[Any]]) -> None:
    first, _ = run_ranks(UNFINISHED, [{"PEER": "dies", "SECONDS": "60"}] * 2)

    assert first.code == 0, first
    assert float(first.printed) < 40
    assert "still under way" not in first.logged


def test_a_collective_that_another_rank_does_not_join_is_waited_for_in_vain(
    run_ranks: Callable[..., list[Any]],
) -> None:
    first, _ = run_ranks(UNFINISHED, [{"PEER": "is late", "SECONDS": "1"}] * 2)

    assert first.code == 0, first
    assert "a collective of gloo's is still under way after 1 s" in first.logged


FORK = """
import os, sys, time
import torch
import torch.distributed as dist
import smddp

smddp.join()
dist.all_reduce(torch.ones(3))
began = time.monotonic()
if (child := os.fork()) == 0:
    from smddp.distributed import gloo_drain
    gloo_drain.drain_gloo()
    os._exit(0)
os.waitpid(child, 0)
print(time.monotonic() - began)
smddp.leave(together=True)
"""


def test_a_fork_does_not_wait_for_threads_that_only_its_parent_has(run_ranks: Callable[..., list[Any]]) -> None:
    ranks = run_ranks(FORK)

    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert all(float(rank.printed) < 8 for rank in ranks), ranks
