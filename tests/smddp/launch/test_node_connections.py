"""The lines between agents, with all nodes in this process."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

import pytest

from smddp.launch import node_connections
from smddp.launch.node_connections import JobFailure, NodeLines

HEEDLESS = dict.fromkeys(("lost_first", "failed", "stopped"), lambda: None)
KILLED = JobFailure(code=137, report="Rank 1 was killed")


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def losses():
    return []


@pytest.fixture
def stopped():
    return []


@pytest.fixture
def nodes(losses, stopped):
    nodes = [
        NodeLines(
            host=f"host-{node}",
            lost_first=lambda node=node: losses.append(node),
            failed=lambda: None,
            stopped=lambda node=node: stopped.append(node),
        )
        for node in range(3)
    ]
    port = nodes[0].serve("127.0.0.1")
    for node in (1, 2):
        nodes[node].connect(node, "127.0.0.1", port, 10.0)
    assert nodes[0].await_nodes(3, 10.0)
    return nodes


def end(lines):
    """What the kernel does when an agent ends."""
    for line in list(lines._lines.values()):
        with suppress(OSError):  # the other end has ended
            line.shutdown(socket.SHUT_RDWR)


def test_the_first_failure_is_settled_for_all_nodes(nodes):
    assert nodes[1].settle(KILLED) == KILLED
    assert nodes[2].settle(JobFailure(code=1, report="an echo")) == KILLED
    assert nodes[0].settle(JobFailure(code=2, report="another echo")) == KILLED
    wait_for(lambda: all(node.failure == KILLED for node in nodes))


def test_a_failure_after_the_loss_of_the_first_node_is_settled_at_once(nodes, losses, monkeypatch):
    monkeypatch.setattr(node_connections, "_SETTLE_SECONDS", 600.0)
    end(nodes[0])
    wait_for(lambda: sorted(losses) == [1, 2])
    assert nodes[1].settle(KILLED) == KILLED


def test_a_node_that_is_lost_is_told_to_the_others_by_its_name(nodes):
    end(nodes[1])
    wait_for(lambda: nodes[2].failure is not None)
    assert nodes[0].failure == nodes[2].failure
    assert nodes[2].failure.report.startswith("Node 1, host-1, was lost: its agent was killed, or its host has ended")


def test_the_loss_of_the_first_node_is_told_to_its_callers(nodes, losses):
    end(nodes[0])
    wait_for(lambda: sorted(losses) == [1, 2])
    assert not nodes[1].first_has_left(600.0)  # at once


def test_the_first_node_can_wait_for_the_others_end_and_for_no_longer(nodes):
    began = time.monotonic()
    nodes[0].await_others(0.3)
    assert 0.3 <= time.monotonic() - began < 30
    for node in nodes[1:]:
        end(node)
    nodes[0].await_others(300.0)
    assert time.monotonic() - began < 90


def test_who_parted_is_not_lost(nodes, losses):
    for node in nodes:
        node.part()
    assert not nodes[1].first_has_left()
    for node in nodes:
        end(node)
    assert all(node.first_has_left(60.0) for node in nodes[1:])
    time.sleep(0.2)
    assert (losses, [node.failure for node in nodes]) == ([], [None] * 3)


@pytest.mark.parametrize("first", [0, 1])
def test_a_node_that_a_stop_ends_before_its_ranks_begin_stops_the_others(nodes, stopped, first):
    nodes[first].part(stopped=True)
    wait_for(lambda: {0, 1, 2} - {first} <= set(stopped))


def test_whoever_connects_and_is_no_node_is_not_counted():
    lines = NodeLines(host="host-0", **HEEDLESS)
    with socket.create_connection(("127.0.0.1", lines.serve("127.0.0.1"))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert not lines.await_nodes(2, 0.3)
    assert lines.failure is None


def test_one_node_settles_alone():
    assert NodeLines(host="host-0", **HEEDLESS).settle(KILLED) == KILLED
