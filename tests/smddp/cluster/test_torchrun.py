from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.cluster import Cluster
from smddp.errors import ClusterError

RANK_3_OF_4 = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29501",
    "TORCHELASTIC_RUN_ID": "none",
}
TWO_HOSTS = {"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"}


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


@given(nodes=st.integers(1, 5), per_node=st.integers(1, 5), data=st.data())
def test_every_rank_of_every_layout_is_found(nodes: int, per_node: int, data: st.DataObject) -> None:
    node, local = data.draw(st.integers(0, nodes - 1)), data.draw(st.integers(0, per_node - 1))
    environ = RANK_3_OF_4 | {
        "RANK": str(node * per_node + local),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(nodes * per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
    }
    if data.draw(st.booleans()):
        environ = without(environ, "GROUP_RANK", "GROUP_WORLD_SIZE")
    cluster = Cluster.detect(environ)
    assert (cluster.rank, cluster.local_rank, cluster.node_rank) == (node * per_node + local, local, node)
    assert (cluster.world_size, cluster.local_world_size, cluster.node_count) == (nodes * per_node, per_node, nodes)
    assert (cluster.master_addr, cluster.master_port, cluster.launcher) == ("10.0.0.1", 29501, "torchrun")
    assert len(cluster.hosts) == nodes


def test_sources_name_the_deciding_variables() -> None:
    sources = Cluster.detect(without(RANK_3_OF_4, "GROUP_RANK", "GROUP_WORLD_SIZE")).sources
    assert sources["rank"] == "RANK=3"
    assert sources["node_rank"] == "RANK=3 // LOCAL_WORLD_SIZE=2"
    assert sources["hosts"] == "default: torchrun names no hosts"


def test_nodes_may_run_different_numbers_of_processes() -> None:
    environ = RANK_3_OF_4 | {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1"}
    assert Cluster.detect(environ).node_rank == 1
    with pytest.raises(ClusterError, match="set GROUP_RANK and GROUP_WORLD_SIZE"):
        Cluster.detect(without(environ | {"LOCAL_WORLD_SIZE": "2"}, "GROUP_RANK", "GROUP_WORLD_SIZE"))


def test_in_a_sagemaker_job_hosts_have_their_names_there() -> None:
    cluster = Cluster.detect(RANK_3_OF_4 | TWO_HOSTS | {"MASTER_ADDR": "algo-1", "MASTER_PORT": "7777"})
    assert (cluster.launcher, cluster.rank, cluster.host) == ("torchrun", 3, "algo-2")
    assert cluster.hosts == ("algo-1", "algo-2")


def test_only_the_distributions_hosts_count_in_a_heterogeneous_cluster() -> None:
    groups = (
        '{"current_host":"algo-2","hosts":["algo-1","algo-2","algo-3"],"instance_groups":['
        '{"instance_group_name":"data","hosts":["algo-1"]},{"instance_group_name":"gpu","hosts":["algo-2","algo-3"]}]}'
    )
    cluster = Cluster.detect(
        RANK_3_OF_4
        | {"SM_HOSTS": '["algo-1","algo-2","algo-3"]', "SM_CURRENT_HOST": "algo-3"}
        | {"SM_DISTRIBUTION_INSTANCE_GROUPS": '["gpu"]', "SM_RESOURCE_CONFIG": groups}
    )
    assert cluster.hosts == ("algo-2", "algo-3")


def test_torchrun_for_each_host_alone_is_refused_in_a_job_of_two_hosts() -> None:
    alone = RANK_3_OF_4 | {"RANK": "1", "WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    with pytest.raises(ClusterError, match=r"hosts .* must be as many as node_count 1 \(GROUP_WORLD_SIZE=1\)"):
        Cluster.detect(alone | TWO_HOSTS)


def test_a_node_rank_that_is_another_hosts_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"SM_CURRENT_HOST=algo-1, but node rank 1 .* is host algo-2"):
        Cluster.detect(RANK_3_OF_4 | TWO_HOSTS | {"SM_CURRENT_HOST": "algo-1"})


def test_a_rank_without_a_local_rank_is_never_a_process_rank() -> None:
    alibaba = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "dlc-master-0", "MASTER_PORT": "23456"}
    with pytest.raises(
        ClusterError,
        match=r"RANK=1 is set, but LOCAL_RANK and LOCAL_WORLD_SIZE are not: .*number nodes.*torchrun.*or "
        "unset RANK if no launcher started this process",
    ):
        Cluster.detect(alibaba)


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_WORLD_SIZE"])
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(ClusterError, match=rf"is set, but {name} is not"):
        Cluster.detect(without(RANK_3_OF_4, name))


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
def test_one_variable_alone_is_refused(name: str) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    *others, last = (each for each in names if each != name)
    told = (
        f"{name}=1 is set, but {', '.join(others)} and {last} are not: set them as well, or unset {name} if no launch"
    )
    with pytest.raises(ClusterError, match=told):
        Cluster.detect({name: "1"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "4"}, r"rank 4 \(RANK=4\) must lie between 0 and 3, because world_size 4 \(WORLD_SIZE=4\)"),
        ({"LOCAL_RANK": "2"}, r"local_rank 2 \(LOCAL_RANK=2\)"),
        ({"GROUP_RANK": "2"}, r"node_rank 2 \(GROUP_RANK=2\)"),
        ({"RANK": "first"}, "RANK=first: expected a whole number"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0: expected a whole number of at least 1"),
        ({"MASTER_PORT": "66000"}, "master_port 66000"),
    ],
)
def test_contradictions_name_variable_value_and_what_is_expected(change: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        Cluster.detect(RANK_3_OF_4 | change)


@pytest.mark.parametrize(
    "outer",
    [
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},  # mpirun started a torchrun on each node
        {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"},  # srun did
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},  # a wrapper translated mpirun's variables
    ],
)
def test_torchruns_convention_inside_another_launcher_counts(outer: dict[str, str]) -> None:
    assert Cluster.detect(without(RANK_3_OF_4, "TORCHELASTIC_RUN_ID") | outer).rank == 3
    assert Cluster.detect(RANK_3_OF_4 | outer | {"SLURM_PROCID": "0"}).rank == 3


@pytest.mark.parametrize(
    "outer",
    [
        {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8"},
        {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"},
    ],
)
def test_two_launchers_that_disagree_are_refused(outer: dict[str, str]) -> None:
    with pytest.raises(ClusterError, match=r"Two launchers disagree: RANK=3, WORLD_SIZE=4, but (OMPI|SLURM)"):
        Cluster.detect(without(RANK_3_OF_4, "TORCHELASTIC_RUN_ID") | outer)
