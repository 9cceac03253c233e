import ast
import itertools
from collections.abc import Callable
from typing import Any

import pytest

import smddp.distributed.ranks
from smddp.distributed import Agreement, Ranks
from smddp.process.preemption import StopSignal


@pytest.fixture
def alone() -> Ranks:
    return Ranks(rank=0, world_size=1)


class Clock:
    """Time passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(smddp.distributed.ranks, "time", clock)
    return clock


def steps_that_ask(agreement: Agreement, clock: Clock, until: int, seconds: float) -> list[int]:
    asked = []
    for step in range(1, until):
        clock.now += seconds
        if step >= agreement.next_step:
            asked.append(step)
            agreement.decide(step)
    return asked


def test_fast_steps_ask_ever_more_rarely_up_to_a_bound(alone: Ranks, clock: Clock) -> None:
    asked = steps_that_ask(Agreement(alone, StopSignal()), clock, until=1000, seconds=0.001)

    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert gaps[:4] == [2, 4, 8, 16]
    assert max(gaps) == 50


def test_slow_steps_ask_about_four_times_a_second(alone: Ranks, clock: Clock) -> None:
    assert steps_that_ask(Agreement(alone, StopSignal()), clock, until=16, seconds=0.08) == [1, 3, 6, 9, 12, 15]


def test_steps_that_become_slow_are_asked_more_often(alone: Ranks, clock: Clock) -> None:
    agreement = Agreement(alone, StopSignal())
    steps_that_ask(agreement, clock, until=200, seconds=0.001)
    step = agreement.next_step
    clock.now += 50 * 2.0
    agreement.decide(step)
    assert agreement.next_step == step + 1


def test_a_stop_is_decided_and_so_is_a_checkpoint_by_the_clock(alone: Ranks, clock: Clock) -> None:
    stop = StopSignal()
    agreement = Agreement(alone, stop, save_seconds=60)

    first = agreement.decide(1)
    clock.now += 61
    second = agreement.decide(2)
    agreement.saved()
    stop.requested = True
    third = agreement.decide(3)

    assert [first.save, second.save, third.save] == [False, True, False]
    assert [first.stop, second.stop, third.stop] == [False, False, True]


def test_the_clock_may_change_its_interval(alone: Ranks, clock: Clock) -> None:
    agreement = Agreement(alone, StopSignal(), save_seconds=60)
    clock.now += 30
    assert not agreement.decide(1).save
    agreement.save_seconds = 20
    assert agreement.decide(2).save
    agreement.save_seconds = None
    assert not agreement.decide(3).save


def test_a_rank_alone_decides_what_it_knows(alone: Ranks) -> None:
    stop = StopSignal()
    agreement = Agreement(alone, stop)
    assert not agreement.decide(1).failed
    decision = agreement.decide(2, failed=True, stall=0.5)
    assert (decision.failed, decision.stall, decision.stop) == (True, 0.5, False)
    stop.requested = True
    assert agreement.decide(3).stop_age == 0


TWO_RANKS = """
import sys, time
import smddp
from smddp.distributed import Agreement
from smddp.process.preemption import StopSignal

membership = smddp.join()
rank = membership.cluster.rank
stop = StopSignal()
agreement = Agreement(membership.ranks, stop, save_seconds=None if rank == 0 else 0.0)  # rank 1's clock does not count
print(agreement.decide(1, stall=0.25 * rank))
with stop:
    if rank == 1:
        import os, signal
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
    decision = agreement.decide(2, failed=rank == 1)
print(decision.stop, decision.failed, decision.save, decision.stop_age >= 0.3)
smddp.leave()
"""


def test_what_one_rank_knows_all_ranks_decide(run_ranks: Callable[..., list[Any]]) -> None:
    first = (
        "Decision(stop=False, stop_age=-1.0, save=False, failed=False, held=False, metrics_differ=False, stall=0.25)"
    )
    expected = f"{first}\nTrue True False True\n"
    for ended in run_ranks(TWO_RANKS):
        assert ended.printed == expected, ended.logged


def test_counting_starts_where_a_run_resumed(alone: Ranks) -> None:
    agreement = Agreement(alone, StopSignal())
    agreement.start(1000)
    assert agreement.next_step == 1001
    agreement.decide(1001)
    assert agreement.next_step == 1003


def test_asking_twice_at_one_step_moves_nothing(alone: Ranks) -> None:
    agreement = Agreement(alone, StopSignal())
    agreement.decide(1)
    moved = agreement.next_step
    agreement.decide(1)
    assert agreement.next_step == moved


BROADCAST = """
import torch
import torch.distributed as dist
import smddp
from smddp.distributed import Ranks, ranks

membership = smddp.join()
ranks._PIECE, ranks._ALONE = 256, 100
own = membership.cluster.rank
shapes = [(), (0, 3), (5, 5), (9,), (24,), (25,), (30, 30), (40,), (7,)]
tensors = [torch.full(shape, float(own * 100 + number)) for number, shape in enumerate(shapes)]
addresses = [tensor.data_ptr() for tensor in tensors]
sent = []
broadcast = dist.broadcast

def noted(tensor, src):
    sent.append((tensor.nbytes, tensor.data_ptr() in addresses))
    broadcast(tensor, src=src)

dist.broadcast = noted
Ranks.current().broadcast(tensors, source=1)
assert all(bool((tensor == 100 + number).all()) for number, tensor in enumerate(tensors)), tensors
print(sorted(sent))
smddp.leave()
"""


def test_large_tensors_are_broadcast_without_a_copy_and_small_ones_together(
    run_ranks: Callable[..., list[Any]],
) -> None:
    ranks = run_ranks(BROADCAST)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    sent = ast.literal_eval(ranks[0].printed)
    assert max(size for size, _ in sent) <= 256
    assert [size for size, is_own in sent if is_own] == [100, 100, 160, 256]
    assert sum(size for size, _ in sent) == 4 * (1 + 25 + 9 + 24 + 25 + 900 + 40 + 7)
