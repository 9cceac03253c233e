"""The check before training: real ranks that stand for hosts, one of them slow, garbling, or cut off."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.collectives.preflight import rounds, slow_hosts

PROGRAM = """
import smddp
import smddp.collectives.preflight as preflight
{fault}
def main(job: smddp.Job) -> None:
    print("trains", flush=True)
smddp.run(main, preflight_collectives=True)
"""

ON_HOST_1 = """
import os, time, torch
from datetime import timedelta
real = preflight._exchange
def exchange(own, received, rank, group):
    {body}
if os.environ["RANK"] == "1":
    preflight._exchange = exchange
"""


def host(rank: int) -> dict[str, str]:
    """The environment of the only rank of one of three hosts."""
    return {
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": "3",
    }


def run_hosts(run_ranks, body: str):
    fault = ON_HOST_1.replace("{body}", body) if body else ""
    return run_ranks(PROGRAM.replace("{fault}", fault), [host(rank) for rank in range(3)])


@pytest.mark.slow
def test_healthy_hosts_are_told_with_their_bandwidth_and_train(run_ranks):
    ends = run_hosts(run_ranks, "")
    assert [(end.code, end.printed) for end in ends] == [(0, "trains\n")] * 3, ends[0].logged
    assert "checked 3 hosts" in ends[0].logged


@pytest.mark.slow
def test_a_slow_host_is_named_and_training_begins(run_ranks):
    ends = run_hosts(run_ranks, "time.sleep(1.0); real(own, received, rank, group)")
    assert [end.code for end in ends] == [0, 0, 0], ends[0].logged
    assert "(node 1) is slow" in ends[0].logged
    assert ends[0].logged.count("is slow") == 1


@pytest.mark.slow
def test_a_host_that_garbles_what_it_sends_ends_the_job_by_name(run_ranks):
    ends = run_hosts(run_ranks, "real(own + 1, received, rank, group)")
    assert [end.code for end in ends] == [1, 1, 1]
    assert "The check before training found: " in ends[0].logged
    assert "(node 1): what was received is not what was sent" in ends[0].logged
    assert "(node 2)" not in ends[0].logged


@pytest.mark.slow
def test_a_host_that_does_not_answer_ends_the_job_by_name(run_ranks):
    patience = "preflight._PATIENCE = __import__('datetime').timedelta(seconds=2)\n"
    fault = patience + ON_HOST_1.replace("{body}", "raise RuntimeError('no route to host')")
    ends = run_ranks(PROGRAM.replace("{fault}", fault), [host(rank) for rank in range(3)])
    assert [end.code for end in ends] == [1, 1, 1]
    assert "(node 1)" in ends[0].logged
    assert not any("trains" in end.printed for end in ends)


@given(st.integers(2, 40))
def test_every_pair_meets_once_and_nobody_twice_in_a_round(count):
    plan = rounds(count)
    assert sorted(tuple(sorted(pair)) for pairs in plan for pair in pairs) == list(
        itertools.combinations(range(count), 2)
    )
    assert all(len({player for pair in pairs for player in pair}) == 2 * len(pairs) for pairs in plan)
    assert len(plan) <= count


@pytest.mark.parametrize("slow", range(4))
def test_the_slow_host_is_told_from_those_that_meet_it(slow):
    bandwidths = {(a, b): 1e8 if slow in (a, b) else 1e9 for a, b in itertools.permutations(range(4), 2)}
    assert [node for node, _, _ in slow_hosts(bandwidths)] == [slow]
    assert slow_hosts(dict.fromkeys(bandwidths, 1e9)) == []
    assert slow_hosts({(0, 1): 1.0, (1, 0): 1.0}) == [], "of two hosts it can't be told which one is slow"
