from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from smddp.cluster import Cluster
from smddp.errors import ClusterError

TWO_NODES: dict[str, Any] = {
    "rank": 3,
    "local_rank": 1,
    "world_size": 4,
    "local_world_size": 2,
    "node_rank": 1,
    "node_count": 2,
    "hosts": ("a", "b"),
    "master_addr": "a",
    "master_port": 29500,
    "launcher": "torchrun",
}


def test_plain_process_is_rank_0_of_1() -> None:
    cluster = Cluster.detect({})
    assert (cluster.rank, cluster.local_rank, cluster.world_size, cluster.local_world_size) == (0, 0, 1, 1)
    assert (cluster.node_rank, cluster.node_count, cluster.hosts) == (0, 1, ("localhost",))
    assert (cluster.master_addr, cluster.master_port, cluster.launcher) == ("127.0.0.1", 29500, "single")
    assert cluster.is_main


def test_plain_process_keeps_a_master_address_that_someone_set() -> None:
    cluster = Cluster.detect({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"})
    assert (cluster.world_size, cluster.master_addr, cluster.master_port) == (1, "10.0.0.1", 1234)
    assert cluster.sources["master_addr"] == "MASTER_ADDR=10.0.0.1"


def test_own_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.9.8.7")
    assert Cluster.detect().master_addr == "10.9.8.7"


def test_host_is_the_nodes_name() -> None:
    cluster = Cluster(**TWO_NODES)
    assert cluster.host == "b"
    assert not cluster.is_main


def test_explain_gives_every_field_with_its_value_and_source() -> None:
    explained = Cluster.detect({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}).explain()
    assert [field for field, _, _ in explained] == [
        field.name for field in dataclasses.fields(Cluster) if field.name != "sources"
    ]
    assert ("hosts", ("algo-1",), 'SM_HOSTS=["algo-1"]') in explained
    assert ("master_port", 7777, "default: the SageMaker toolkit's port") in explained


def test_a_cluster_given_by_hand_says_so() -> None:
    assert ("rank", 3, "given") in Cluster(**TWO_NODES).explain()


def test_clusters_are_equal_whatever_decided_them() -> None:
    assert Cluster(**TWO_NODES) == Cluster(**TWO_NODES, sources={"rank": "RANK=3"})
    assert hash(Cluster(**TWO_NODES)) == hash(Cluster(**TWO_NODES, sources={"rank": "RANK=3"}))


def test_a_cluster_is_frozen_and_can_be_sent_to_another_process() -> None:
    cluster = Cluster.detect({})
    with pytest.raises(dataclasses.FrozenInstanceError):
        cluster.rank = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(cluster)).explain() == cluster.explain()
    assert copy.deepcopy(cluster) == cluster


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rank": 4}, "rank 4 (given) must lie between 0 and 3, because world_size 4"),
        ({"rank": -1}, "rank -1"),
        ({"local_rank": 2}, "local_rank 2"),
        ({"node_rank": 2}, "node_rank 2"),
        ({"local_world_size": 5, "world_size": 4}, "local_world_size 5"),
        ({"local_world_size": 4}, "leaves no process"),
        ({"node_count": 5}, "node_count 5"),
        ({"node_count": 1, "node_rank": 0, "hosts": ("a",)}, "local_world_size 2"),
        ({"hosts": ("a",)}, "hosts ('a',)"),
        ({"hosts": ("a", "a")}, "twice"),
        ({"master_port": 70000}, "master_port 70000"),
        ({"master_port": 0}, "master_port 0"),
    ],
)
def test_contradictory_fields_are_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ClusterError) as caught:
        Cluster(**(TWO_NODES | change))
    assert named in str(caught.value)
