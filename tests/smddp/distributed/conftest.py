"""Real ranks: the processes begin with torch imported, and know each other as one cluster."""

from collections.abc import Callable

import pytest

from smddp.cluster import Cluster
from tests.fork_python import ForkPython


@pytest.fixture
def make_cluster(port: int) -> Callable[[int, int], Cluster]:
    """A cluster of one host; its master is on a free port."""

    def make(rank: int, world_size: int) -> Cluster:
        return Cluster(
            rank=rank,
            local_rank=rank,
            world_size=world_size,
            local_world_size=world_size,
            node_rank=0,
            node_count=1,
            hosts=("localhost",),
            master_addr="127.0.0.1",
            master_port=port,
            launcher="torchrun",
        )

    return make


@pytest.fixture(autouse=True)
def _fork_python(fork_python: ForkPython) -> None:
    """All processes here begin with torch imported."""
