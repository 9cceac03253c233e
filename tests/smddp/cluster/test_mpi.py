from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.cluster import Cluster
from smddp.errors import ClusterError


def openmpi(rank: int, size: int, local_size: int, **more: str) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % local_size),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "PMIX_NAMESPACE": "624820225",
    } | more


@given(nodes=st.integers(1, 5), per_node=st.integers(1, 5), data=st.data())
def test_every_rank_of_every_layout_is_found(nodes: int, per_node: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, nodes * per_node - 1))
    cluster = Cluster.detect(openmpi(rank, nodes * per_node, per_node, MASTER_ADDR="gpu1", MASTER_PORT="4000"))
    assert (cluster.rank, cluster.local_rank, cluster.node_rank) == (rank, rank % per_node, rank // per_node)
    assert (cluster.node_count, len(cluster.hosts), cluster.launcher) == (nodes, nodes, "mpi")
    assert (cluster.master_addr, cluster.master_port) == ("gpu1", 4000)


def test_ranks_of_one_node_meet_there_at_a_port_of_their_job() -> None:
    cluster = Cluster.detect(openmpi(1, 2, 2))
    assert (cluster.master_addr, cluster.hosts) == ("127.0.0.1", ("localhost",))
    assert cluster.master_port == Cluster.detect(openmpi(0, 2, 2)).master_port
    assert cluster.master_port != Cluster.detect(openmpi(0, 2, 2, PMIX_NAMESPACE="1")).master_port
    assert cluster.sources["master_port"] == "default: derived from PMIX_NAMESPACE=624820225"


def test_several_nodes_without_a_meeting_place_are_refused() -> None:
    with pytest.raises(ClusterError, match=r"MASTER_ADDR is not set.*-x MASTER_ADDR=HOST"):
        Cluster.detect(openmpi(0, 4, 2))


def test_in_a_sagemaker_job_they_meet_at_its_first_host() -> None:
    # mpirun exports SM_CURRENT_HOST of the host that it was started on to every rank.
    cluster = Cluster.detect(openmpi(3, 4, 2, SM_HOSTS='["algo-1","algo-2"]', SM_CURRENT_HOST="algo-1"))
    assert (cluster.launcher, cluster.node_rank, cluster.host) == ("mpi", 1, "algo-2")
    assert (cluster.master_addr, cluster.master_port) == ("algo-1", 7777)


def test_mpi_on_one_host_of_two_is_refused_in_a_sagemaker_job() -> None:
    with pytest.raises(ClusterError, match=r"MPI runs on 1 host\(s\).*the job has 2 .*\[\"-np\", \"4\"\]"):
        Cluster.detect(openmpi(1, 2, 2, SM_HOSTS='["algo-1","algo-2"]', SM_CURRENT_HOST="algo-1"))


def test_hydras_dialect() -> None:
    environ = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    cluster = Cluster.detect(environ)
    assert (cluster.rank, cluster.local_rank, cluster.world_size, cluster.launcher) == (1, 1, 2, "mpi")
    assert cluster.sources["master_port"] == "default: this MPI gives its jobs no id"


def test_inside_a_slurm_allocation_mpirun_counts() -> None:
    slurm = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "1", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "5"}
    assert Cluster.detect(openmpi(1, 2, 2) | slurm).rank == 1


@pytest.mark.parametrize(
    ("local_rank", "local_size", "size"),
    [("0", "2", "4"), ("1", "2", "5")],  # ranks dealt out node by node; nodes of different sizes
)
def test_ranks_that_do_not_fill_one_node_after_the_other_are_refused(
    local_rank: str, local_size: str, size: str
) -> None:
    environ = openmpi(1, 4, 2, MASTER_ADDR="a", MASTER_PORT="1")
    environ |= {"OMPI_COMM_WORLD_LOCAL_RANK": local_rank, "OMPI_COMM_WORLD_LOCAL_SIZE": local_size}
    with pytest.raises(ClusterError, match="--map-by slot"):
        Cluster.detect(environ | {"OMPI_COMM_WORLD_SIZE": size})


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_RANK=0 is set, but OMPI_COMM_WORLD_SIZE is not"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "PMI_RANK=0 is set, but MPI_LOCALRANKID is not"),
        (openmpi(0, 2, 2, OMPI_COMM_WORLD_SIZE="many"), "OMPI_COMM_WORLD_SIZE=many: expected a whole number"),
        (openmpi(0, 2, 2, WORLD_SIZE="3"), "WORLD_SIZE=3, but mpi started 2 processes"),
        (openmpi(0, 2, 2, MASTER_PORT="http"), "MASTER_PORT=http: expected a whole number"),
    ],
)
def test_partial_or_contradictory_input_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        Cluster.detect(environ)


@pytest.mark.mpi
def test_a_real_mpirun() -> None:
    script = (
        "import json; from smddp.cluster import Cluster; c = Cluster.detect(); "
        "print(json.dumps([c.rank, c.world_size, c.local_rank, c.launcher, c.master_addr, c.master_port]), flush=True)"
    )
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, "-c", script]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    # Not by lines: mpirun passes on what it has read of a rank, and an unbuffered Python writes a line's end alone.
    first, second = sorted(json.loads(found) for found in re.findall(r"\[.*?\]", output))
    assert (first[:5], second[:5]) == ([0, 2, 0, "mpi", "127.0.0.1"], [1, 2, 1, "mpi", "127.0.0.1"])
    assert first[5] == second[5] != 29500
