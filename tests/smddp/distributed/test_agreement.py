import itertools
import time
from collections.abc import Callable

import pytest
import torch

from smddp.cluster import Cluster
from smddp.distributed import Agreement, Membership
from smddp.stopping import StopSignal


@pytest.fixture
def alone(make_cluster: Callable[[int, int], Cluster]) -> Membership:
    return Membership(cluster=make_cluster(0, 1), backend=None, device=torch.device("cpu"), store=None)


def steps_that_ask(agreement: Agreement, until: int, seconds: float = 0.0) -> list[int]:
    asked = []
    for step in range(1, until):
        time.sleep(seconds)
        if step >= agreement.next_step:
            asked.append(step)
            agreement.decide(step)
    return asked


def test_fast_steps_ask_ever_more_rarely_up_to_a_bound(alone: Membership) -> None:
    asked = steps_that_ask(Agreement(alone, StopSignal()), until=1000)

    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert gaps[:4] == [2, 4, 8, 16]
    assert max(gaps) == 50


def test_slow_steps_ask_about_once_a_second(alone: Membership) -> None:
    asked = steps_that_ask(Agreement(alone, StopSignal()), until=12, seconds=0.3)
    assert asked == [1, 3, 6, 9] or asked == [1, 3, 5, 8, 11] or asked == [1, 3, 6, 9, 11]


def test_a_stop_is_decided_and_so_is_a_checkpoint_by_the_clock(alone: Membership) -> None:
    stop = StopSignal()
    agreement = Agreement(alone, stop, save_seconds=0.05)

    first = agreement.decide(1)
    time.sleep(0.06)
    second = agreement.decide(2)
    agreement.saved()
    stop.requested = True
    third = agreement.decide(3)

    assert [first.save, second.save, third.save] == [False, True, False]
    assert [first.stop, second.stop, third.stop] == [False, False, True]


def test_counting_starts_where_a_run_resumed(alone: Membership) -> None:
    agreement = Agreement(alone, StopSignal())
    agreement.start(1000)
    assert agreement.next_step == 1001
    agreement.decide(1001)
    assert agreement.next_step == 1003


def test_asking_twice_at_one_step_moves_nothing(alone: Membership) -> None:
    agreement = Agreement(alone, StopSignal())
    agreement.decide(1)
    moved = agreement.next_step
    agreement.decide(1)
    assert agreement.next_step == moved
