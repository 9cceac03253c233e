from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.cluster import Cluster
from smddp.cluster.slurm import expand_nodes, expand_tasks
from smddp.cluster.strict_variables import EnvValue
from smddp.errors import ClusterError

TASK_5_OF_7 = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "7",
    "SLURM_NODEID": "2",
    "SLURM_NNODES": "4",
    "SLURM_TASKS_PER_NODE": "2(x3),1",
    "SLURM_JOB_NODELIST": "gpu[01-03,07]",
}


def test_a_task_of_srun() -> None:
    cluster = Cluster.detect(TASK_5_OF_7)
    assert (cluster.rank, cluster.local_rank, cluster.world_size, cluster.local_world_size) == (5, 1, 7, 2)
    assert (cluster.node_rank, cluster.node_count, cluster.host) == (2, 4, "gpu03")
    assert cluster.hosts == ("gpu01", "gpu02", "gpu03", "gpu07")
    assert (cluster.launcher, cluster.master_addr) == ("slurm", "gpu01")
    assert cluster.sources["local_world_size"] == "SLURM_TASKS_PER_NODE=2(x3),1 at SLURM_NODEID=2"


def test_the_port_is_the_steps_own() -> None:
    port = Cluster.detect(TASK_5_OF_7).master_port
    last = {"SLURM_PROCID": "6", "SLURM_LOCALID": "0", "SLURM_NODEID": "3"}
    assert Cluster.detect(TASK_5_OF_7 | last).master_port == port
    assert Cluster.detect(TASK_5_OF_7 | {"SLURM_STEP_ID": "1"}).master_port != port
    assert Cluster.detect(TASK_5_OF_7 | {"SLURM_JOB_ID": "4712"}).master_port != port


def test_master_addr_and_port_of_the_user_win() -> None:
    cluster = Cluster.detect(TASK_5_OF_7 | {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "5000", "WORLD_SIZE": "7"})
    assert (cluster.master_addr, cluster.master_port, cluster.launcher) == ("10.0.0.9", 5000, "slurm")


def test_a_step_on_part_of_the_allocation_counts_by_itself() -> None:
    step = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "gpu07",
    }
    cluster = Cluster.detect(TASK_5_OF_7 | step | {"SLURM_PROCID": "1", "SLURM_NODEID": "0"})
    assert (cluster.rank, cluster.world_size, cluster.hosts) == (1, 2, ("gpu07",))


@pytest.mark.parametrize(
    "shell",
    [
        {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "7", "SLURM_NNODES": "4"},  # salloc
        {name: value for name, value in TASK_5_OF_7.items() if name != "SLURM_STEP_ID"},  # a batch script
        TASK_5_OF_7 | {"SLURM_STEP_ID": "4294967290"},  # an interactive step
        TASK_5_OF_7 | {"SLURM_STEP_ID": "4294967291"},  # the batch step
    ],
)
def test_a_shell_in_an_allocation_is_one_plain_process(shell: dict[str, str]) -> None:
    cluster = Cluster.detect(shell)
    assert (cluster.world_size, cluster.launcher) == (1, "single")
    assert "SLURM_JOB_ID=4711, but srun did not start this process" in cluster.sources["world_size"]


def test_srun_with_pmi_counts_by_slurm() -> None:
    cluster = Cluster.detect(TASK_5_OF_7 | {"PMI_RANK": "5", "PMI_SIZE": "7"})
    assert (cluster.launcher, cluster.rank) == ("slurm", 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SLURM_NTASKS": "8"}, r"SLURM_TASKS_PER_NODE=2\(x3\),1 places 7 tasks on 4 nodes, but SLURM_NTASKS=8"),
        ({"SLURM_NNODES": "3"}, "places 7 tasks on 4 nodes, but .*SLURM_NNODES=3"),
        ({"SLURM_NODEID": "4"}, "SLURM_NODEID=4"),
        ({"SLURM_PROCID": "7"}, r"rank 7 \(SLURM_PROCID=7\)"),
        ({"SLURM_TASKS_PER_NODE": "2x3"}, r"SLURM_TASKS_PER_NODE=2x3: expected numbers of tasks such as 2\(x3\),1"),
        ({"SLURM_JOB_NODELIST": "gpu[01-"}, r"SLURM_JOB_NODELIST=gpu\[01-: expected a list of nodes"),
        ({"SLURM_JOB_NODELIST": "gpu[03-01]"}, r"SLURM_JOB_NODELIST=gpu\[03-01\]: expected a list of nodes"),
        ({"SLURM_JOB_NODELIST": "gpu01"}, r"hosts .* must be as many as node_count 4 \(SLURM_NNODES=4\)"),
        ({"SLURM_LOCALID": ""}, "SLURM_PROCID=5 is set, but SLURM_LOCALID is not"),
        ({"SLURM_STEP_ID": "batch"}, "SLURM_STEP_ID=batch: expected a whole number"),
        ({"WORLD_SIZE": "8"}, "WORLD_SIZE=8, but slurm started 7 processes"),
    ],
)
def test_partial_or_contradictory_input_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        Cluster.detect(TASK_5_OF_7 | change)


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[01-03,07]", ["gpu01", "gpu02", "gpu03", "gpu07"]),
        ("gpu[9-11],login", ["gpu9", "gpu10", "gpu11", "login"]),
        ("a[1-2]b[3,5]-ib", ["a1b3-ib", "a1b5-ib", "a2b3-ib", "a2b5-ib"]),
        ("ip-10-0-0-1, ip-10-0-0-2", ["ip-10-0-0-1", "ip-10-0-0-2"]),
    ],
)
def test_compressed_lists_of_nodes(listed: str, names: list[str]) -> None:
    assert list(expand_nodes(EnvValue(listed, "here"))) == names


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_any_number_of_tasks_on_each_node(counts: list[int]) -> None:
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    compressed = ",".join(str(count) if times == 1 else f"{count}(x{times})" for count, times in runs)
    assert list(expand_tasks(EnvValue(compressed, "here"))) == counts
