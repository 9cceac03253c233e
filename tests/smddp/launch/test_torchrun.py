"""Real agents with real ranks; the scripts leave torch alone, which keeps each under three seconds."""

from __future__ import annotations

import re
import signal
import socket

import pytest

from smddp.errors import DistributedError
from smddp.launch import torchrun
from smddp.launch.torchrun import Node
from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("fork_python")

TORCHRUN = ("-m", "smddp.launch.torchrun")


def lines(process, number):
    return sorted(process.stdout.readline().strip() for _ in range(number))


def test_a_stop_reaches_all_ranks_and_none_is_killed_for_being_slow(start, script):
    path = script("print('up'); wait(); time.sleep(rank * 0.8); print('saved', rank); sys.exit(75)")
    agent = start(*TORCHRUN, "--nproc-per-node", "2", path)
    assert lines(agent, 2) == ["up", "up"]
    agent.send_signal(signal.SIGTERM)
    assert lines(agent, 2) == ["saved 0", "saved 1"]
    assert agent.wait(timeout=20) == 75


def test_two_nodes_share_one_world_and_arguments_arrive_as_they_are(start, script):
    path = script("e = os.environ; print(rank, e['WORLD_SIZE'], e['LOCAL_RANK'], e['GROUP_RANK'], sys.argv[1:])")
    port = str(free_port())
    common = ("--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", port)
    agents = [start(*TORCHRUN, *common, "--node-rank", str(rank), path, "--cost", "$$5") for rank in range(2)]
    said, logged = zip(*(agent.communicate(timeout=60) for agent in agents), strict=True)
    assert [sorted(node.splitlines()) for node in said] == [
        [f"{2 * node + local} 4 {local} {node} ['--cost', '$$5']" for local in range(2)] for node in range(2)
    ]
    assert [agent.returncode for agent in agents] == [0, 0]
    assert not any("barrier" in log for log in logged)


def test_no_option_of_a_script_is_taken_for_an_abbreviation(monkeypatch):
    started = []
    monkeypatch.setattr(torchrun, "launch", lambda node, command, *_, **__: started.append((node, command[1:])) or 0)
    options = ["--n", "1", "--node", "2", "--max-restarts", "3", "--", "--help"]
    assert torchrun.main(["--nnodes", "1", "train.py", *options]) == 0
    ((node, command),) = started
    assert command == ["train.py", *options]
    assert (node.nodes, node.max_restarts) == (1, 0)


@pytest.mark.parametrize("option", ["-m", "--module"])
def test_a_module_reaches_the_ranks_as_python_takes_it(monkeypatch, option):
    started = []
    monkeypatch.setattr(torchrun, "launch", lambda _, command, *__, **___: started.append(command[1:]) or 0)
    assert torchrun.main([option, "--nnodes", "1", "jobs.train", "-m", "--lr", "1"]) == 0
    assert started == [["-m", "jobs.train", "-m", "--lr", "1"]]


def test_a_stop_while_the_other_node_is_awaited_ends_at_once(start, script):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # accepts and never answers: the first node that hangs
        port = str(silent.getsockname()[1])
        common = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", port)
        agent = start(*TORCHRUN, *common, "--node-rank", "1", script(""))
        silent.settimeout(60)
        connection, _ = silent.accept()
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(timeout=60) == 75
        connection.close()


def test_nodes_that_can_not_meet_are_an_error_with_the_address(start, script):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        agent = start(*TORCHRUN, "--nnodes", "2", "--master-port", str(port), script(""))
        _, error = agent.communicate(timeout=60)
    assert agent.returncode == 1
    assert (
        f"ERROR smddp: node 0 of 2 could not listen as the master at 127.0.0.1:{port}: another program uses port {port}"
        in error
    )
    assert "cut off" not in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 0}, "one or more"),
        ({"processes": 0}, "one or more"),
        ({"rank": 2}, "not one of 0 to 1"),
        ({"master_port": 0}, "need one --master-port"),
        ({"master_port": 99999}, "port 99999 is no TCP port: give one from 1 to 65535"),
    ],
)
def test_a_node_that_does_not_fit_is_refused(change, message):
    node = {"nodes": 2, "processes": 1, "rank": 0, "master_addr": "127.0.0.1", "master_port": 7777}
    with pytest.raises(DistributedError, match=message):
        Node(**{**node, **change})


def test_the_agent_warns_before_the_ranks_start(start, script, fork_python):
    path = script("import torch.multiprocessing as mp\nif rank < 0: mp.spawn(print)\nsay('up')")
    agent = start("-m", "smddp.launch.torchrun", "--nproc-per-node", "2", path)
    out, log = agent.communicate(timeout=60)
    assert (agent.returncode, out) == (0, "up\nup\n"), log
    assert len(re.findall(r"train\.py spawns ranks in line \d, and torchrun's agent starts ranks, too", log)) == 1
