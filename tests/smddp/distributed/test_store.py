import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from torch.distributed import HashStore, TCPStore

from smddp.cluster import Cluster
from smddp.distributed import store as module
from smddp.distributed.meeting import await_listener, is_silent
from smddp.distributed.store import agent_serves_store, connect, connect_again, meet, serve_store
from smddp.errors import DistributedError
from smddp.process.heartbeat import Heartbeat
from tests.ports import free_port

MakeCluster = Callable[[int, int], Cluster]

WAIT = timedelta(seconds=10)


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=WAIT)


def meet_all(store: TCPStore, make_cluster: MakeCluster, world_size: int) -> set[str]:
    stores = [connect_again(store, "smddp", WAIT) for _ in range(world_size)]
    with ThreadPoolExecutor(world_size) as pool:
        return set(pool.map(lambda rank: meet(stores[rank], make_cluster(rank, world_size), WAIT), range(world_size)))


def test_each_meeting_in_one_store_has_a_prefix_that_all_ranks_know(store: TCPStore, make_cluster: MakeCluster) -> None:
    meetings = [meet_all(store, make_cluster, world_size) for world_size in (3, 3, 2, 4)]
    assert [len(prefixes) for prefixes in meetings] == [1, 1, 1, 1]
    assert len(set.union(*meetings)) == 4


def test_a_rank_of_an_earlier_attempt_has_not_arrived(store: TCPStore, make_cluster: MakeCluster) -> None:
    with pytest.raises(DistributedError, match=r"rank 1 waited 0\.1 s .* for rank 0 of 3"):
        meet(connect_again(store, "smddp", WAIT), make_cluster(1, 3), timedelta(seconds=0.1))
    meet_all(store, make_cluster, 2)

    with pytest.raises(DistributedError, match=r"rank 0 waited 0\.1 s .* for ranks 1, 2 of 3"):
        meet(connect_again(store, "smddp", WAIT), make_cluster(0, 3), timedelta(seconds=0.1))


def test_every_rank_names_the_one_that_is_missing(store: TCPStore, make_cluster: MakeCluster) -> None:
    stores = [connect_again(store, "smddp", WAIT) for _ in range(2)]

    def outcome(rank: int) -> str:
        with pytest.raises(DistributedError) as raised:
            meet(stores[rank], make_cluster(rank, 3), timedelta(seconds=2))
        return str(raised.value)

    with ThreadPoolExecutor(2) as pool:
        assert all("for rank 2 of 3" in told for told in pool.map(outcome, range(2)))


def master(make_cluster: MakeCluster, rank: int, port: int, *, port_from: str) -> Cluster:
    cluster = make_cluster(rank, 2)
    return replace(cluster, master_addr="127.0.0.1", master_port=port, sources={"master_port": port_from})


def join(cluster: Cluster, *, seconds: float = 10.0) -> str | None:
    """The error of a rank that joins; None if there is none."""
    try:
        connect(cluster, timedelta(seconds=seconds), {}, serve=True)
    except DistributedError as error:
        return str(error)
    return None


def test_a_program_that_listens_and_never_answers_is_not_waited_for(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROBE_SECONDS", 0.1)
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        told = [join(master(make_cluster, rank, port, port_from="MASTER_PORT=1"), seconds=600) for rank in range(2)]
    assert told[0] is not None and re.match(
        rf"rank 0 on \S+ could not listen as the master at 127\.0\.0\.1:{port}: another program uses port {port} "
        r"on this host\. Set MASTER_PORT, or smddp run --master-port, to a port that nobody uses on the first host",
        told[0],
    )
    assert told[1] is not None and re.match(
        rf"rank 1 on \S+ could not reach the master at 127\.0\.0\.1:{port}: another program listens there\. Set ",
        told[1],
    )


def test_a_store_that_is_no_jobs_is_refused(
    store: TCPStore, make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.3)
    told = join(master(make_cluster, 1, store.port, port_from="MASTER_PORT=1"))
    assert told is not None and "another program's store answers there. Set MASTER_PORT" in told


def test_a_rank_of_another_job_with_the_same_port_is_refused(make_cluster: MakeCluster) -> None:
    ports = [f"default: derived from SLURM_JOB_ID='{job}'" for job in (4711, 4811)]
    port = free_port()
    kept = connect(master(make_cluster, 0, port, port_from=ports[0]), WAIT, {}, serve=True)
    assert join(master(make_cluster, 1, port, port_from=ports[0])) is None
    told = join(master(make_cluster, 1, port, port_from=ports[1])) or ""
    assert "the store of another job answers (SLURM_JOB_ID='4711'; this job: SLURM_JOB_ID='4811'). Set MASTER" in told
    assert join(master(make_cluster, 1, port, port_from=f"MASTER_PORT={port}")) is None  # the same port has two sources
    assert kept.check([module._JOB]) is False  # the job's id is no key of the ranks


@pytest.mark.parametrize(("own", "other"), [(2, 3), (3, 2)])
def test_ranks_that_count_differently_refuse_one_another_at_once(
    make_cluster: MakeCluster, own: int, other: int
) -> None:
    port = free_port()
    first, second = (
        replace(make_cluster(rank, count), master_addr="127.0.0.1", master_port=port, sources={"master_port": "PORT=1"})
        for rank, count in enumerate((own, other))
    )
    kept = connect(first, WAIT, {}, serve=True)
    told = join(second) or ""
    assert re.match(
        rf"rank 1 on \S+ was started with {other} ranks, and rank 0 with {own} ranks\. All ranks .* set WORLD_SIZE",
        told,
    )
    with pytest.raises(
        DistributedError, match=rf"^rank 0 was started with {own} ranks, and rank 1 on \S+ with {other} ranks\. "
    ):
        meet(kept, first, timedelta(seconds=60))
    again = connect(first, WAIT, {}, serve=True)  # in the same process, by the same server
    with pytest.raises(DistributedError, match="rank 0 waited 0"):
        meet(again, first, timedelta(seconds=0.1))


def test_a_master_that_begins_late_is_waited_for(make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PROBE_SECONDS", 0.05)
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 20.0)
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(join, master(make_cluster, 1, port, port_from="MASTER_PORT=1"), seconds=60)
        time.sleep(1.0)
        kept = connect(master(make_cluster, 0, port, port_from="MASTER_PORT=1"), WAIT, {}, serve=True)
        assert early.result() is None
    del kept


def test_the_probes_themselves_do_not_hide_a_program_that_accepts_nobody(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROBE_SECONDS", 0.05)
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 4.0)
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:  # the queue is full after a few of them
        told = join(master(make_cluster, 1, silent.getsockname()[1], port_from="MASTER_PORT=1"), seconds=600)
    assert told is not None and "another program listens there" in told


def test_only_a_connection_that_stays_open_without_a_word_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        port = server.getsockname()[1]
        assert is_silent("127.0.0.1", port) is True
        server.accept()[0].close()
        closing = pool.submit(lambda: server.accept()[0].close())
        assert is_silent("127.0.0.1", port) is False  # a proxy whose rank 0 is not up yet
        closing.result()
    assert is_silent("127.0.0.1", port) is False
    assert is_silent("a" * 64, port) is False


def test_rank_0_tells_which_rank_it_waits_for_where_and_how_long(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "Heartbeat", partial(Heartbeat, every=0.02))
    port = free_port()
    first = master(make_cluster, 0, port, port_from="MASTER_PORT=1")
    with pytest.raises(DistributedError, match="rank 0 waited 3"):
        meet(connect(first, WAIT, {}, serve=True), first, timedelta(seconds=3))
    told = f"1 of 2 ranks have arrived at 127.0.0.1:{port}; waiting for rank 1, at most 3 s: 0 s so far"
    assert told in caplog.messages


@pytest.mark.parametrize(
    ("launcher", "environ", "level"),
    [
        ("torchrun", {}, "WARNING"),  # started by hand: nobody else logs for it
        ("torchrun", {"TORCHELASTIC_RUN_ID": "none"}, "INFO"),
        ("mpi", {}, "INFO"),
    ],
)
def test_a_rank_tells_which_master_it_waits_for_and_how_long(
    make_cluster: MakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    launcher: str,
    environ: dict[str, str],
    level: str,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(module, "_BY_HAND_SECONDS", 0.02)
    port = free_port()
    rank = replace(master(make_cluster, 1, port, port_from="MASTER_PORT=1"), launcher=launcher)
    with pytest.raises(DistributedError) as refused:
        connect(rank, timedelta(seconds=3), environ, serve=True)
    assert re.fullmatch(
        rf"rank 1 on \S+ could not reach the master at 127\.0\.0\.1:{port} within 3 s \(Connection refused\); is the "
        r"address right, is rank 0 running, is the port open between the hosts\?",
        str(refused.value),
    )
    told = (
        rf"rank 1 on \S+ waits for the master at 127\.0\.0\.1:{port}, where nobody listens yet, at most 3 s: 0 s so far"
    )
    assert {record.levelname for record in caplog.records if re.fullmatch(told, record.message)} == {level}
    assert "frame #" not in capfd.readouterr().err  # torch's, for each attempt to reach a store


def test_a_rank_tells_that_the_master_does_not_answer(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name, seconds in (("_PROBE_SECONDS", 0.1), ("_ANSWER_SECONDS", 1.0), ("_BY_HAND_SECONDS", 0.02)):
        monkeypatch.setattr(module, name, seconds)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert "another program listens there" in (join(master(make_cluster, 1, port, port_from="MASTER_PORT=1")) or "")
    assert any(f"127.0.0.1:{port}, which does not answer yet, at most 10 s" in each for each in caplog.messages)


def test_a_connection_of_a_port_with_itself_is_no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.connect(own.getsockname())  # as Linux does by chance for a port of the range for clients
        monkeypatch.setattr("socket.create_connection", lambda *_, **__: own)
        with pytest.raises(TimeoutError, match="nobody listens there"):
            await_listener("127.0.0.1", own.getsockname()[1], time.monotonic() - 1, threading.Event())


def listeners(port: int) -> set[tuple[str, str]]:
    """Return the kind and the address of each socket of this machine that listens at a port."""
    lines = [
        (kind, line.split()) for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()
    ]
    return {
        (kind, words[1].split(":")[0])
        for kind, words in lines
        if words[1].endswith(f":{port:04X}") and words[3] == "0A"
    }


def test_no_host_name_of_a_client_is_asked_from_dns_for_one_machine() -> None:
    # TCPStore listens by IPv6 otherwise, where 127.0.0.1 is ::ffff:127.0.0.1: no file of names has that.
    served = serve_store("127.0.0.1", 0, WAIT, is_on_one_host=True)
    assert listeners(served.port) == {("tcp", "0100007F")}
    client = TCPStore("127.0.0.1", served.port, is_master=False, timeout=WAIT, wait_for_workers=False)
    client.set("key", "value")
    assert served.get("key") == b"value"


def test_an_address_that_others_reach_by_ipv6_is_served_by_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*_: object, **__: object) -> list[tuple[int, str]]:
        return [(socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")]

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", look_up)
        served = serve_store("localhost", 0, WAIT, is_on_one_host=True)
    assert listeners(served.port) == {("tcp6", "0" * 32)}


def test_two_stores_of_one_process_at_one_port_are_one() -> None:
    first = serve_store("127.0.0.1", 0, WAIT, is_on_one_host=True)
    second = serve_store("127.0.0.1", first.port, WAIT, is_on_one_host=True)
    second.set("key", "value")
    assert first.get("key") == b"value"


def test_other_hosts_may_know_the_first_one_by_another_address() -> None:
    served = serve_store("localhost", 0, WAIT, is_on_one_host=False)
    assert listeners(served.port) == {("tcp6", "0" * 32)}


def test_only_a_store_at_the_agents_port_is_the_agents(make_cluster: MakeCluster) -> None:
    agents, scripts = (serve_store("127.0.0.1", 0, WAIT, is_on_one_host=True) for _ in range(2))
    cluster = master(make_cluster, 1, agents.port, port_from="MASTER_PORT")
    environ = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agents.port)}
    assert agent_serves_store(connect_again(agents, "smddp", WAIT), cluster, environ)
    assert not agent_serves_store(scripts, cluster, environ)
    assert not agent_serves_store(HashStore(), cluster, environ)
    assert not agent_serves_store(agents, cluster, {**environ, "TORCHELASTIC_USE_AGENT_STORE": "False"})
