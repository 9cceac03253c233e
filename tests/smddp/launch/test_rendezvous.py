"""The agents' meetings, with both nodes in this process."""

from __future__ import annotations

import logging
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

from smddp.errors import DistributedError
from smddp.launch import rendezvous as module
from smddp.launch.node_connections import NodeLines
from smddp.launch.rendezvous import NodeRendezvous
from smddp.process.heartbeat import Heartbeat
from tests.ports import free_port


def node_of(
    node: int, *, port: int, nodes: int = 2, max_restarts: int = 0, job_id: str = "a", lines: NodeLines | None = None
) -> NodeRendezvous:
    heed = dict.fromkeys(("lost_first", "failed", "stopped"), lambda: None)
    return NodeRendezvous(
        node=node,
        nodes=nodes,
        max_restarts=max_restarts,
        address="127.0.0.1",
        port=port,
        job_id=job_id,
        lines=lines or NodeLines(host=f"host-{node}", **heed),
    )


@pytest.fixture
def nodes():
    port = free_port()
    nodes = [node_of(node, port=port) for node in range(2)]
    meet(nodes)
    return nodes


def meet(nodes):
    with ThreadPoolExecutor() as pool:
        return list(pool.map(NodeRendezvous.next_rendezvous, nodes))


def test_each_round_has_keys_of_its_own_and_the_same_numbers(nodes):
    first = nodes[0].next_rendezvous
    assert [node.number for node in nodes] == [0, 0]
    assert not nodes[1].next_has_begun()
    waiting = threading.Thread(target=first)
    waiting.start()
    while not nodes[1].next_has_begun():
        time.sleep(0.01)
    met = nodes[1].next_rendezvous()
    waiting.join()
    assert ([node.number for node in nodes], met.rank, met.world_size) == ([1, 1], 1, 2)
    met.store.set("key", "of round 1")
    assert not nodes[0].next_has_begun()
    assert not meet(nodes)[0].store.check(["key"])


def test_the_first_cause_is_everybody_s(nodes):
    assert [node.settle_cause(f"node {place} says so") for place, node in enumerate(nodes)] == 2 * ["node 0 says so"]


def test_a_node_that_does_not_come_is_named(nodes, monkeypatch):
    monkeypatch.setattr(module, "REJOIN_SECONDS", 0.3)
    with pytest.raises(RendezvousTimeoutError, match="node 1 did not come within 0 s"):
        nodes[0].next_rendezvous()


def test_a_node_that_will_not_come_is_not_waited_for(nodes):
    nodes[1].set_closed()
    with pytest.raises(RendezvousClosedError, match="another node has ended already"):
        nodes[0].next_rendezvous()


def test_the_first_node_goes_last_and_waits_for_nobody_for_ever(nodes, monkeypatch):
    leaving = threading.Thread(target=nodes[0].part)
    leaving.start()
    leaving.join(0.5)
    assert leaving.is_alive()
    nodes[1].part()
    leaving.join(60)
    assert not leaving.is_alive()
    monkeypatch.setattr(module, "_PART_SECONDS", 0.1)
    meet(nodes)
    nodes[0].part()


def test_a_node_of_another_job_with_the_same_port_is_refused(nodes):
    stranger = node_of(1, port=nodes[0]._port, job_id="b")
    with pytest.raises(
        DistributedError,
        match=r"^node 1 of 2 could not join at .*: the store of another job answers \(a; this job: b\)",
    ):
        stranger.next_rendezvous()


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (({"nodes": 2}, "2 nodes and 0 restarts"), ({"nodes": 3}, "3 nodes and 0 restarts")),
        (({"nodes": 3}, "3 nodes and 0 restarts"), ({"nodes": 2}, "2 nodes and 0 restarts")),
        (({"max_restarts": 1}, "2 nodes and 1 restart"), ({}, "2 nodes and 0 restarts")),
    ],
)
def test_nodes_that_count_differently_refuse_one_another_at_once(own, other):
    port = free_port()
    nodes = [node_of(number, port=port, **settings) for number, (settings, _) in enumerate((own, other))]
    with ThreadPoolExecutor() as pool:
        meeting = [pool.submit(node.next_rendezvous) for node in nodes]
        first, second = (each.exception(timeout=60) for each in meeting)
    assert isinstance(first, DistributedError)
    assert isinstance(second, DistributedError)
    remedy = r"\. All nodes .* the same --nodes and"
    assert re.match(rf"node 0 was started with {own[1]}, and node 1 on \S+ with {other[1]}{remedy}", str(first))
    assert re.match(rf"node 1 on \S+ was started with {other[1]}, and node 0 with {own[1]}{remedy}", str(second))


def test_a_node_that_comes_late_and_counts_differently_does_not_end_the_job(nodes):
    with pytest.raises(DistributedError, match="was started with 3 nodes"):
        node_of(2, nodes=3, port=nodes[0]._port).next_rendezvous()
    meet(nodes)
    assert [node.number for node in nodes] == [1, 1]


def test_the_first_node_tells_which_node_it_waits_for_where_and_how_long(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "Heartbeat", partial(Heartbeat, every=0.02))
    monkeypatch.setattr(module, "JOIN_SECONDS", 3.0)
    port = free_port()
    with pytest.raises(RendezvousTimeoutError, match="nodes 1, 2 did not come"):
        node_of(0, nodes=3, port=port).next_rendezvous()
    told = f"1 of 3 nodes have arrived at 127.0.0.1:{port}; waiting for nodes 1, 2, at most 3 s: 0 s so far"
    assert told in caplog.messages
