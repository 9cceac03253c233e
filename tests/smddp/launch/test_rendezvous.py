"""The agents' meetings, with both nodes in this process."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

from smddp.errors import DistributedError
from smddp.launch import rendezvous as module
from smddp.launch.node_connections import NodeLines
from smddp.launch.rendezvous import NodeRendezvous
from tests.ports import free_port


@pytest.fixture
def nodes():
    port = free_port()
    heed = dict.fromkeys(("lost_first", "failed", "stopped"), lambda: None)
    lines = [NodeLines(host=f"host-{node}", **heed) for node in range(2)]
    nodes = [
        NodeRendezvous(node=node, nodes=2, address="127.0.0.1", port=port, job_id="a", lines=lines[node])
        for node in range(2)
    ]
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
    leaving.join(5)
    assert not leaving.is_alive()
    monkeypatch.setattr(module, "_PART_SECONDS", 0.1)
    meet(nodes)
    nodes[0].part()


def test_a_node_of_another_job_with_the_same_port_is_refused(nodes):
    stranger = NodeRendezvous(node=1, nodes=2, address="127.0.0.1", port=nodes[0]._port, job_id="b", lines=None)
    with pytest.raises(
        DistributedError,
        match=r"^node 1 of 2 could not join at .*: the store of another job answers \(a; this job: b\)",
    ):
        stranger.next_rendezvous()
