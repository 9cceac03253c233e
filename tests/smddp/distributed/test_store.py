from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from smddp.cluster import Cluster
from smddp.distributed.store import connect_again, meet
from smddp.errors import DistributedError

MakeCluster = Callable[[int, int], Cluster]

WAIT = timedelta(seconds=10)


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=WAIT)


def meet_all(store: TCPStore, make_cluster: MakeCluster, world_size: int) -> set[str]:
    stores = [connect_again(store, "smddp", WAIT) for _ in range(world_size)]
    with ThreadPoolExecutor(world_size) as pool:
        return set(pool.map(lambda rank: meet(stores[rank], make_cluster(rank, world_size), WAIT), range(world_size)))


def test_each_meeting_in_one_store_has_a_prefix_that_all_ranks_know(store: TCPStore, make_cluster: MakeCluster) -> None:
    meetings = [meet_all(store, make_cluster, world_size) for world_size in (3, 3, 2, 4)]
    assert [len(prefixes) for prefixes in meetings] == [1, 1, 1, 1]
    assert len(set.union(*meetings)) == 4


def test_a_rank_of_an_earlier_attempt_has_not_arrived(store: TCPStore, make_cluster: MakeCluster) -> None:
    with pytest.raises(DistributedError, match=r"rank 1 waited 0\.1 s .* for rank 0 of 3"):
        meet(connect_again(store, "smddp", WAIT), make_cluster(1, 3), timedelta(seconds=0.1))
    meet_all(store, make_cluster, 2)

    with pytest.raises(DistributedError, match=r"rank 0 waited 0\.1 s .* for rank 1, 2 of 3"):
        meet(connect_again(store, "smddp", WAIT), make_cluster(0, 3), timedelta(seconds=0.1))


def test_every_rank_names_the_one_that_is_missing(store: TCPStore, make_cluster: MakeCluster) -> None:
    stores = [connect_again(store, "smddp", WAIT) for _ in range(2)]

    def outcome(rank: int) -> str:
        with pytest.raises(DistributedError) as raised:
            meet(stores[rank], make_cluster(rank, 3), timedelta(seconds=2))
        return str(raised.value)

    with ThreadPoolExecutor(2) as pool:
        assert all("for rank 2 of 3" in told for told in pool.map(outcome, range(2)))
