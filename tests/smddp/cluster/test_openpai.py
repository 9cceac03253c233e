from __future__ import annotations

import pytest

from smddp.cluster import Cluster
from smddp.errors import ClusterError

DOCUMENTED = {
    "PAI_CURRENT_TASK_ROLE_NAME": "train_er",
    "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": "1",
    "PAI_TASK_ROLE_TASK_COUNT_train_er": "2",
    "PAI_HOST_IP_train_er_0": "10.0.0.1",
    "PAI_HOST_IP_train_er_1": "10.0.0.2",
    "PAI_HOST_IP_server_0": "10.0.0.3",
    "PAI_PORT_LIST_train_er_0_SyncPort": "20001,20002",
    "PAI_PORT_LIST_train_er_0_ssh": "20003",
    "PAI_PORT_LIST_train_er_1_SyncPort": "20004",
}
OLDER = {
    "PAI_TASK_INDEX": "1",
    "PAI_HOST_IP_worker_0": "10.0.0.1",
    "PAI_HOST_IP_worker_1": "10.0.0.2",
    "PAI_worker_0_SynPort_PORT": "20001",
}


@pytest.mark.parametrize("environ", [DOCUMENTED, OLDER], ids=["documented", "older"])
def test_one_process_an_instance(environ: dict[str, str]) -> None:
    cluster = Cluster.detect(environ)
    assert (cluster.rank, cluster.world_size, cluster.local_rank, cluster.local_world_size) == (1, 2, 0, 1)
    assert (cluster.node_rank, cluster.node_count, cluster.host) == (1, 2, "10.0.0.2")
    assert (cluster.launcher, cluster.master_addr, cluster.master_port) == ("openpai", "10.0.0.1", 20001)


def test_both_dialects_at_once_agree() -> None:
    both = DOCUMENTED | {"PAI_TASK_INDEX": "1", "PAI_train_er_0_SyncPort_PORT": "20001"}
    assert Cluster.detect(both) == Cluster.detect(DOCUMENTED)


def test_sources_name_the_deciding_variables() -> None:
    sources = Cluster.detect(OLDER).sources
    assert sources["rank"] == "PAI_TASK_INDEX=1"
    assert sources["world_size"] == "2 variables PAI_HOST_IP_worker_<i>"
    assert sources["master_port"] == "PAI_worker_0_SynPort_PORT=20001"


def test_instances_on_one_machine_keep_names_of_their_own() -> None:
    cluster = Cluster.detect(OLDER | {"PAI_HOST_IP_worker_1": "10.0.0.1"})
    assert cluster.hosts == ("10.0.0.1/0", "10.0.0.1/1")


def test_torchrun_in_an_instance_counts() -> None:
    torchrun = {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20001",
    }
    assert Cluster.detect(DOCUMENTED | torchrun).rank == 5


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (DOCUMENTED | {"PAI_HOST_IP_train_er_0": ""}, "but PAI_HOST_IP_train_er_0 is not"),
        (DOCUMENTED | {"PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": "2"}, "must lie between 0 and 1"),
        (DOCUMENTED | {"PAI_CURRENT_TASK_ROLE_NAME": "nobody"}, "neither PAI_TASK_ROLE_TASK_COUNT_nobody nor"),
        (DOCUMENTED | {"PAI_PORT_LIST_train_er_0_SyncPort": ""}, "reserved port .* found none.*set MASTER_PORT"),
        (DOCUMENTED | {"PAI_PORT_LIST_train_er_0_other": "1"}, "found 2 .*SyncPort.*set MASTER_PORT"),
        (DOCUMENTED | {"PAI_PORT_LIST_train_er_0_SyncPort": "a"}, "SyncPort=a: expected a port"),
        (OLDER | {"PAI_HOST_IP_server_0": "10.0.0.3"}, "names the task roles server, worker: expected one"),
        ({"PAI_TASK_INDEX": "0"}, "PAI_TASK_INDEX=0 is set, and .* names no task role"),
        (OLDER | {"PAI_TASK_INDEX": "first"}, "PAI_TASK_INDEX=first: expected a whole number"),
    ],
)
def test_partial_or_contradictory_input_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        Cluster.detect(environ)


def test_master_port_of_the_user_needs_no_reserved_port() -> None:
    without = {name: value for name, value in OLDER.items() if "PORT" not in name}
    assert Cluster.detect(without | {"MASTER_PORT": "5000"}).master_port == 5000
