import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import smddp.distributed.membership
from smddp.cluster import Cluster
from smddp.distributed import current_membership, join, leave
from smddp.distributed.membership import interface_settings
from smddp.errors import DistributedError


@pytest.fixture(autouse=True)
def _leave() -> Iterator[None]:
    yield
    leave()


def test_one_process_joins_a_group_of_one(make_cluster: Callable[[int, int], Cluster]) -> None:
    membership = join(make_cluster(0, 1))

    assert current_membership() is membership
    assert (membership.backend, membership.store) == ("gloo", None)
    ones = torch.ones(3)
    dist.all_reduce(ones)
    assert (dist.get_world_size(), ones.tolist()) == (1, [1.0, 1.0, 1.0])
    DistributedDataParallel(torch.nn.Linear(2, 2))(torch.ones(1, 2)).sum().backward()
    leave()
    leave()
    assert current_membership() is None
    assert not dist.is_initialized()


def test_the_group_of_one_process_can_not_be_reached_from_other_hosts(
    make_cluster: Callable[[int, int], Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []
    init = dist.init_process_group

    def watch(*words: Any, **options: Any) -> None:
        seen.append(os.environ.get("GLOO_SOCKET_IFNAME"))
        init(*words, **options)

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(dist, "init_process_group", watch)
    before = listening_sockets()
    join(make_cluster(0, 1))
    assert seen == ["lo"]
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    assert {address for address, _ in listening_sockets() - before} == {"0100007F"}


def listening_sockets() -> set[tuple[str, str]]:
    """The addresses and ports of this process's own, as /proc writes them."""
    own = set[str]()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed it meanwhile
            own.add(str(entry.readlink()))
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    found = (row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own)
    return {(address, port) for address, port in found}


def test_a_group_that_the_script_ended_is_left_too(make_cluster: Callable[[int, int], Cluster]) -> None:
    join(make_cluster(0, 1))
    dist.destroy_process_group()
    leave()
    assert current_membership() is None


def test_joining_twice_is_refused(make_cluster: Callable[[int, int], Cluster]) -> None:
    join(make_cluster(0, 1))
    with pytest.raises(DistributedError, match=r"joined a process group already; call smddp\.leave\(\)"):
        join(make_cluster(0, 1))


def test_ranks_that_do_not_come_are_named(make_cluster: Callable[[int, int], Cluster]) -> None:
    with pytest.raises(DistributedError, match=r"rank 0 waited 1 s at 127\.0\.0\.1:\d+ for ranks 1, 2 of 3"):
        join(make_cluster(0, 3), timeout=1)
    assert current_membership() is None


def test_a_master_that_is_not_there_is_named(make_cluster: Callable[[int, int], Cluster]) -> None:
    started = time.monotonic()
    with pytest.raises(DistributedError, match=r"rank 1 on localhost could not reach the master at 127\.0\.0\.1:\d+"):
        join(make_cluster(1, 2), timeout=1.0)
    assert time.monotonic() - started < 20


def test_the_environment_says_how_long_to_wait(
    make_cluster: Callable[[int, int], Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMDDP_TIMEOUT", "1.5")
    with pytest.raises(DistributedError, match=r"rank 0 waited 1\.5 s"):
        join(make_cluster(0, 2))


@pytest.mark.parametrize("given", ["soon", "0", "-3", "nan", "inf", "1e30"])
def test_a_timeout_that_is_none_is_refused(
    given: str, make_cluster: Callable[[int, int], Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMDDP_TIMEOUT", given)
    with pytest.raises(DistributedError, match=f"SMDDP_TIMEOUT='{given}': a timeout is more than 0 and at most 1000"):
        join(make_cluster(0, 1))


def test_sagemakers_interface_is_used_where_the_user_set_none(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [(1, "lo"), (2, "eth0")]
    monkeypatch.setattr(smddp.distributed.membership.socket, "if_nameindex", lambda: names)

    assert interface_settings({}) == {}
    assert interface_settings({"SM_NETWORK_INTERFACE_NAME": "eth0", "NCCL_SOCKET_IFNAME": "ib0"}) == {
        "GLOO_SOCKET_IFNAME": "eth0"
    }


def test_an_interface_that_the_host_lacks_is_not_forced_on_gloo(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(smddp.distributed.membership.socket, "if_nameindex", lambda: [(1, "lo")])
    assert interface_settings({"SM_NETWORK_INTERFACE_NAME": "eth0"}) == {}
    assert "'eth0', and this host has lo" in caplog.text


TWO_RANKS = """
import time
import torch
from torch import nn
import smddp
from smddp.distributed import Agreement, Replica, sum_over_ranks
from smddp.errors import SmddpError
from smddp.process.preemption import StopSignal

membership = smddp.join()
rank = membership.cluster.rank
assert membership.backend == "gloo"

# Sums
assert sum_over_ranks(torch.tensor([rank, 10]), membership).tolist() == [1, 20]

# Rank 0's outcome
done = []
membership.ranks.on_main(lambda: done.append(1))
assert len(done) == (1 if rank == 0 else 0)
def fail():
    raise OSError("disk full")
try:
    membership.ranks.on_main(fail)
except (OSError, SmddpError) as error:
    print(type(error).__name__, error)

# Each rank's result, or the failure of one
assert membership.ranks.gather(lambda: {"rank": rank}) == [{"rank": 0}, {"rank": 1}]
try:
    membership.ranks.gather(lambda: 1 // rank)
except (ZeroDivisionError, SmddpError) as error:
    print(type(error).__name__, error)

# A replica: rank 0's weights; an evaluation waits for nobody; buffers are shared on demand
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
replica = Replica(model, membership)
weight = sum_over_ranks(model[0].weight.detach(), membership)
assert torch.equal(weight, 2 * model[0].weight)
replica(torch.randn(4, 3)).sum().backward()
gradient = sum_over_ranks(model[0].weight.grad, membership)
assert torch.allclose(gradient, 2 * model[0].weight.grad)
assert rank == 0 or not torch.equal(model[1].running_mean, torch.zeros(3))
replica.share_buffers()
mean = sum_over_ranks(model[1].running_mean, membership)
assert torch.equal(mean, 2 * model[1].running_mean)
with torch.no_grad():
    for _ in range(rank):  # rank 0 has nothing to evaluate
        replica(torch.randn(4, 3))

# What must not be rehearsed: sparse gradients, and hooks that may be an optimizer's
words = nn.Embedding(5, 2, sparse=True)
hooked = nn.Linear(2, 2)
hooked.weight.register_post_accumulate_grad_hook(lambda weight: done.append(weight))
before = len(done)
sparse, alone = Replica(words, membership), Replica(hooked, membership)
assert len(done) == before
sparse(torch.tensor([rank])).sum().backward()
assert words.weight.grad.is_sparse
alone(torch.ones(1, 2)).sum().backward()
assert len(done) == before + 1
del sparse, alone

# Agreement: only rank 1 was told to stop, and both agree on the same step
stop = StopSignal()
agreement = Agreement(membership.ranks, stop)
asked = []
for step in range(1, 200):
    stop.requested = rank == 1 and step >= 20
    if step >= agreement.next_step:
        asked.append(step)
        if agreement.decide(step).stop:
            break
print("asked", asked)
time.sleep(1 - rank)
print(time.monotonic())
smddp.leave(together=True)
print(time.monotonic())
"""


def test_a_rank_that_leaves_long_after_rank_0_ends_well(make_cluster: Callable[[int, int], Cluster]) -> None:
    class Gone:
        def set(self, _key: str, _value: str) -> None:
            raise dist.DistNetworkError("Broken pipe")

    smddp.distributed.membership._say_farewell(make_cluster(1, 2), Gone(), together=False)


def test_two_ranks_sum_share_replicate_agree_and_leave(run_ranks: Callable[..., list[Any]]) -> None:
    ranks = run_ranks(TWO_RANKS)

    assert [rank.code for rank in ranks] == [0, 0], ranks
    first, second = (rank.printed for rank in ranks)
    by_zero = "integer division or modulo by zero"
    assert first.splitlines()[:2] == ["OSError disk full", f"ZeroDivisionError {by_zero}"]
    assert second.splitlines()[:2] == [
        "PeerFailedError rank 0 failed: OSError: disk full",
        f"PeerFailedError rank 0 failed: ZeroDivisionError: {by_zero}",
    ]
    assert first.splitlines()[2] == second.splitlines()[2]
    assert float(second.splitlines()[4]) > float(first.splitlines()[3]), "rank 1 has left before rank 0 came to it"
    asked = [int(step) for step in first.splitlines()[2].removeprefix("asked [").removesuffix("]").split(", ")]
    assert asked[0] == 1
    assert asked[-2] < 20 <= asked[-1]


LEAVES_AT_ONCE = """
import time
import torch.distributed as dist
import smddp
from smddp.cluster import Cluster

rank = Cluster.detect().rank
destroy, init = dist.destroy_process_group, dist.init_process_group

def end_group():
    print(time.monotonic())
    destroy()

def connect(*words, **options):
    init(*words, **options)
    if rank == 1:
        time.sleep(1)  # as if it still connected
        print(time.monotonic())

dist.destroy_process_group, dist.init_process_group = end_group, connect
smddp.join()
smddp.leave()
"""


def test_a_group_is_not_ended_while_another_rank_still_connects(run_ranks: Callable[..., list[Any]]) -> None:
    first, second = run_ranks(LEAVES_AT_ONCE)
    assert [first.code, second.code] == [0, 0], first
    (ended,), (connected, _) = (list(map(float, rank.printed.split())) for rank in (first, second))
    assert ended > connected
