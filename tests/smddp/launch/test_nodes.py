from __future__ import annotations

import logging

import pytest

from smddp.errors import DistributedError
from smddp.launch.nodes import find_nodes

SHELL = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
TASK = {
    **SHELL,
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[01-02]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
INSTANCE = {
    "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": "1",
    "PAI_CURRENT_TASK_ROLE_NAME": "worker",
    "PAI_TASK_ROLE_TASK_COUNT_worker": "2",
    "PAI_HOST_IP_worker_0": "10.0.0.1",
    "PAI_HOST_IP_worker_1": "10.0.0.2",
    "PAI_PORT_LIST_worker_0_master": "4321",
}


@pytest.mark.parametrize(("environ", "address"), [(TASK, "gpu01"), (INSTANCE, "10.0.0.1")])
def test_a_task_of_a_launcher_is_a_node(environ, address):
    nodes = find_nodes(environ)
    assert (nodes.count, nodes.rank, nodes.master_addr, [*nodes.here]) == (2, 1, address, [1])
    assert find_nodes(environ, count=2) == nodes
    assert nodes.master_port == (4321 if environ is INSTANCE else find_nodes({**TASK, "SLURM_PROCID": "0"}).master_port)
    assert find_nodes(environ, master_addr="10.1.1.1", master_port=5000).master_addr == "10.1.1.1"


def test_what_the_caller_says_of_this_node_wins():
    nodes = find_nodes(TASK, count=4, rank=3, master_addr="a", master_port=5000)
    assert (nodes.count, nodes.rank, nodes.master_addr, nodes.master_port) == (4, 3, "a", 5000)


def test_one_node_takes_a_port_no_earlier_than_it_listens_there():
    assert find_nodes({}).master_port == 0
    assert find_nodes({}, count=2).master_port > 0


def test_variables_that_no_launcher_of_nodes_has_set_are_not_looked_at():
    nodes = find_nodes({"WORLD_SIZE": "4", "RANK": "3"}, count=2)
    assert (nodes.rank, [*nodes.here], nodes.master_addr) == (None, [0, 1], "127.0.0.1")


def test_nodes_that_the_launcher_does_not_have_are_refused():
    with pytest.raises(DistributedError, match="--nodes 3, but SLURM_STEP_ID=0 started this on 2 nodes: leave"):
        find_nodes(TASK, count=3)


def test_several_tasks_on_a_node_are_refused():
    several = {**TASK, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_PROCID": "2"}
    with pytest.raises(DistributedError, match=r"started 4 tasks on 2 node\(s\).* --ntasks-per-node=1"):
        find_nodes(several)


def test_an_allocation_of_which_nodes_are_left_unused_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        assert find_nodes(SHELL).count == 1
    assert "SLURM_JOB_ID=7 has 2 nodes, and this trains on one of them" in caplog.text
    caplog.clear()
    find_nodes({**SHELL, "SLURM_JOB_NUM_NODES": "1"})
    find_nodes(TASK)
    assert not caplog.records
