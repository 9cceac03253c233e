"""The key-value store in which the ranks meet: torch's TCPStore, made here so that other code may use it, too.

If torchrun's agent serves a store at the master's address, every rank is its client; otherwise rank 0 serves one.

An agent's store outlives the ranks, and torchrun counts restarts on each node separately
(https://github.com/pytorch/pytorch/issues/108158), so no count in the environment identifies an attempt. How the ranks
of one attempt meet:

1. Rank 0 draws a random prefix for the keys of this meeting.
2. Each other rank draws a nonce, and sets it as its hello.
3. Rank 0 answers each hello with the prefix, under a key with the nonce. A hello of an earlier attempt gets an answer,
   too, but under a nonce that no living rank reads.
4. Each rank reads the answer to its own nonce, and sets its arrival under the prefix.
5. The meeting is complete when all arrivals are set, and rank 0 has said so.

A stop ends each wait: Python's signal handlers run between two looks at the store, and not during torch's own wait.
"""

from __future__ import annotations

import logging
import math
import queue
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from smddp.cluster import Cluster
from smddp.display_text import counted
from smddp.distributed.meeting import EqualCount, await_listener, is_silent, listed, waiting
from smddp.errors import DistributedError
from smddp.process.exit_codes import RESUMABLE
from smddp.process.heartbeat import HEARTBEAT_SECONDS, Heartbeat
from smddp.process.preemption import Stopped, stop_signal

logger = logging.getLogger(__name__)

PREFIX = "smddp"
"""The prefix of all keys that ranks write."""

NEWEST = "meeting"
"""The key of the newest meeting's prefix, for a process that serves the store and is not a rank."""

_JOB = "smddp_job"
"""The key of the id of the job that the server belongs to."""

_COMPLETE = "complete"
"""The key of a meeting that rank 0 sets when all ranks have arrived."""

_LOOK_SECONDS = 0.01
_MOST_LOOK_SECONDS = 0.1
_SIGNAL_SECONDS = 0.5
_PROBE_SECONDS = 2.0
_ANSWER_SECONDS = 30.0
_BY_HAND_SECONDS = 5.0
"""Seconds between the waiting lines of a rank without a launcher: a person sits before it."""

_IPV4 = {socket.AF_INET}
_LOOPBACK = ("127.0.0.1", "localhost")
"""Addresses by which no other machine reaches this one. A machine's own name may be 127.0.1.1 on itself alone."""

_OTHER_PORT = (
    "Set MASTER_PORT, or smddp run --master-port, to a port that nobody uses on the first host, the same on all hosts."
)


def connect(cluster: Cluster, timeout: timedelta, environ: Mapping[str, str], *, serve: bool) -> Store:
    """Return a new connection to the job's store, which may contain keys of earlier attempts.

    ``serve`` lets rank 0 serve the store if torchrun's agent does not; pass it at a process's first connection. Raise
    DistributedError if the server is not reached within ``timeout``, can't be started, or serves another job.
    """
    checks_job = serve and not _agent_serves(cluster, environ)
    store = open_store(
        cluster.master_addr,
        cluster.master_port,
        timeout,
        who=f"rank {cluster.rank} on {cluster.host}",
        is_server=checks_job and cluster.is_main,
        is_on_one_host=cluster.node_count == 1,
        job=cluster.job_id if checks_job else None,
        count=_count(cluster) if checks_job else None,
        by_hand=cluster.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in environ,
    )
    return PrefixStore(PREFIX, store)


def open_store(
    address: str,
    port: int,
    timeout: timedelta,
    *,
    who: str,
    is_server: bool,
    is_on_one_host: bool,
    job: str | None,
    count: EqualCount | None = None,
    by_hand: bool = False,
) -> TCPStore:
    """Start a job's store at this address, or connect to it; raise DistributedError, with ``who`` as its subject.

    ``job`` is the job's id, "" if it has none; None does not check whose store it is. ``count`` must be the server's.
    ``by_hand`` says that no launcher logs for this rank, so its waiting lines are warnings, which every rank shows.

    TCPStore's timeout does not end its handshake with a program that listens and never answers, so the handshake has a
    thread. Bound: nobody waits for it longer than `_ANSWER_SECONDS`, or ``timeout`` if that is less, from when such a
    program was found. Until somebody listens, TCPStore is not asked at all: it prints C++ frames for each attempt in
    vain.
    """
    where = f"the master at {address}:{port}"
    opened: queue.SimpleQueue[TCPStore | Exception] = queue.SimpleQueue()
    deadline = time.monotonic() + timeout.total_seconds()
    listens, given_up = threading.Event(), threading.Event()

    def handshake() -> None:
        try:
            if not is_server:
                await_listener(address, port, deadline, given_up)
            listens.set()
            left = timedelta(seconds=max(deadline - time.monotonic(), _PROBE_SECONDS))
            if is_server:
                store = serve_store(address, port, timeout, is_on_one_host=is_on_one_host)
            else:
                store = TCPStore(address, port, is_master=False, timeout=left, wait_for_workers=False)
            store.set_timeout(timeout)
        except Exception as error:  # the other thread raises it
            opened.put(error)
        else:
            opened.put(store)

    threading.Thread(target=handshake, name="store-handshake", daemon=True).start()
    outcome: TCPStore | Exception | None = None
    silent_since: float | None = None
    next_probe = time.monotonic() + _PROBE_SECONDS
    patience = min(_ANSWER_SECONDS, timeout.total_seconds())
    with (
        ExitStack() as leaving,
        Heartbeat(
            lambda: (
                f"{who} waits for {where}, {'which does not answer' if listens.is_set() else 'where nobody listens'} "
                f"yet, at most {timeout.total_seconds():g} s"
            ),
            say=logger.warning if by_hand else logger.info,
            every=_BY_HAND_SECONDS if by_hand else HEARTBEAT_SECONDS,
        ),
    ):
        leaving.callback(given_up.set)
        while outcome is None:
            with suppress(queue.Empty):
                outcome = opened.get(timeout=min(_PROBE_SECONDS, _SIGNAL_SECONDS))
            if outcome is None:
                _end_if_stopped()
            if outcome is None and not is_server and listens.is_set() and time.monotonic() >= next_probe:
                next_probe = time.monotonic() + _PROBE_SECONDS
                silent = is_silent(address, port)
                if silent is False:
                    silent_since = math.inf
                elif silent or silent_since is None:  # the queue of a silent program may be full already
                    silent_since = min(silent_since or math.inf, time.monotonic())
                if silent_since is not None and time.monotonic() - silent_since > patience:
                    raise DistributedError(
                        f"{who} could not reach {where}: another program listens there. {_OTHER_PORT}"
                    )
    if isinstance(outcome, Exception) and is_server:
        is_used = "EADDRINUSE" in str(outcome)  # torch tells the reason in the text only
        why = f": another program uses port {port} on this host" if is_used else f" ({outcome})"
        raise DistributedError(f"{who} could not listen as {where}{why}. {_OTHER_PORT}") from outcome
    if isinstance(outcome, Exception):
        raise DistributedError(
            f"{who} could not reach {where} within {timeout.total_seconds():g} s ({outcome}); is the address right, is "
            "rank 0 running, is the port open between the hosts?"
        ) from outcome
    if job is not None and is_server:
        if count is not None:
            count.offer(outcome)  # before the job's id, for which the others wait
        outcome.set(_JOB, job)
    elif job is not None:
        _check_job(outcome, job, f"{who} could not join at {address}:{port}")
        if count is not None:
            count.check(outcome)
    return outcome


def serve_store(address: str, port: int, timeout: timedelta, *, is_on_one_host: bool) -> TCPStore:
    """Serve a store at this address; port 0 chooses a free one. If this process serves one there, both share it.

    TCPStore looks up the host name of each client before it answers anybody. It listens by IPv6, and /etc/hosts does
    not list an IPv4 address in IPv6's form, so each lookup goes to DNS: a server that does not answer stops the store
    for 5 s or more. So the store of one host listens by IPv4, if its address is no IPv6 one. Several hosts may reach
    the first one by addresses that it does not know. A client looks up the server's name, too, and only it waits.
    """
    listener = _listen(address, port) if is_on_one_host else None
    return TCPStore(
        address,
        port if listener is None else listener.getsockname()[1],
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def _listen(address: str, port: int) -> socket.socket | None:
    """Return a socket that listens by IPv4; None if the address has an IPv6 one, or after an error.

    TCPStore then reports the error, unless it serves the port in this process.
    """
    try:
        families = {family for family, *_ in socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)}
        return socket.create_server((address if address in _LOOPBACK else "", port)) if families == _IPV4 else None
    except OSError:
        return None


def _count(cluster: Cluster) -> EqualCount:
    return EqualCount(
        member="rank",
        who=f"rank {cluster.rank} on {cluster.host}",
        found=counted(cluster.world_size, "rank"),
        remedy="All ranks of a job need the same number: set WORLD_SIZE to it on each rank.",
    )


def _end_if_stopped() -> None:
    """Raise Stopped if ``smddp.run`` was told to stop."""
    if stop_signal.requested:
        logger.warning("told to stop before all ranks had joined, exit code %d: nothing was saved", RESUMABLE)
        raise Stopped


def _check_job(store: TCPStore, job: str, failed: str) -> None:
    """Refuse another job's store: its rank 0 would take this rank for one of its own."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while not store.check([_JOB]):  # the server sets it at once
        if time.monotonic() > deadline:
            raise DistributedError(f"{failed}: another program's store answers there. {_OTHER_PORT}")
        _end_if_stopped()
        time.sleep(_LOOK_SECONDS)
    found = store.get(_JOB).decode(errors="replace")
    if found and job and found != job:
        raise DistributedError(f"{failed}: the store of another job answers ({found}; this job: {job}). {_OTHER_PORT}")


def innermost(store: Store) -> Store:
    """Return the store below all prefixes."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def connect_again(store: Store, prefix: str, timeout: timedelta) -> Store:
    """Return a second connection to a store, for another thread, with ``prefix`` as the whole prefix of its keys.

    While one thread waits in a TCPStore, another one can't use the same connection.
    """
    store = innermost(store)
    if isinstance(store, TCPStore):
        store = TCPStore(store.host, store.port, is_master=False, timeout=timeout, wait_for_workers=False)
    return PrefixStore(prefix, store)


def meet(store: Store, cluster: Cluster, timeout: timedelta) -> str:
    """Return, once every rank has called it, the prefix of this meeting's keys, new at each meeting.

    Raise DistributedError, with the missing ranks, after ``timeout``.
    """
    if cluster.is_main:
        return _lead(store, cluster, timeout)
    prefix = _ask(store, cluster, timeout)
    meeting = PrefixStore(prefix, store)
    arrivals = [_arrival(rank) for rank in range(cluster.world_size)]
    meeting.set(arrivals[cluster.rank], "")
    try:
        has_all = _wait(meeting, _COMPLETE, cluster, timeout)
    except BaseException:  # the others must not take this rank for one that has come
        with suppress(RuntimeError):
            meeting.delete_key(arrivals[cluster.rank])
        raise
    if not has_all:
        missing = [rank for rank, arrival in enumerate(arrivals) if not meeting.check([arrival])]
        raise _missing(missing, cluster, timeout)
    return prefix


def _wait(store: Store, key: str, cluster: Cluster, timeout: timedelta) -> bool:
    """Wait until a key is set, and return whether it is; raise DistributedError if the store is lost.

    It is a single key, and looked at more and more rarely: each of thousands of ranks asks for it.
    """
    deadline, pause = time.monotonic() + timeout.total_seconds(), _LOOK_SECONDS
    while True:
        try:
            if store.check([key]):
                return True
        except RuntimeError as error:
            _end_if_stopped()
            raise DistributedError(
                f"rank {cluster.rank} lost the store at {_where(cluster)} before all ranks had joined: rank 0 or its "
                "launcher has ended, and its log says why, or the network to it is broken"
            ) from error
        if time.monotonic() > deadline:
            return False
        _end_if_stopped()
        time.sleep(pause)
        pause = min(1.2 * pause, _MOST_LOOK_SECONDS)


def _lead(store: Store, cluster: Cluster, timeout: timedelta) -> str:
    """Draw the prefix, and answer each rank's hello; called on rank 0.

    The first hello found may be from an earlier attempt, so hellos are read again until their rank has arrived.
    """
    server = innermost(store)
    prefix = f"meeting/{secrets.token_hex(8)}"
    meeting = PrefixStore(prefix, store)
    meeting.set(_arrival(0), "")
    store.set(NEWEST, prefix)
    missing = set(range(1, cluster.world_size))
    answered: dict[int, bytes] = {}
    deadline = time.monotonic() + timeout.total_seconds()
    with Heartbeat(lambda: waiting("rank", sorted(missing), cluster.world_size, _where(cluster), timeout)):
        while missing:
            for rank in sorted(missing):
                if store.check([_hello(rank)]) and (nonce := bytes(store.get(_hello(rank)))) != answered.get(rank):
                    store.set(_answer(nonce.decode()), prefix)
                    answered[rank] = nonce
            missing = {rank for rank in missing if not meeting.check([_arrival(rank)])}
            if not missing:  # one may have been stopped since
                missing = {rank for rank in range(1, cluster.world_size) if not meeting.check([_arrival(rank)])}
            if missing:
                _count(cluster).check_others(server)
            if missing and time.monotonic() > deadline:
                raise _missing(sorted(missing), cluster, timeout)
            if missing:
                _end_if_stopped()
            time.sleep(_LOOK_SECONDS if missing else 0)
    meeting.set(_COMPLETE, "")
    return prefix


def _ask(store: Store, cluster: Cluster, timeout: timedelta) -> str:
    """Ask rank 0 for the prefix; called on every other rank."""
    nonce = secrets.token_hex(8)
    store.set(_hello(cluster.rank), nonce)
    if not _wait(store, _answer(nonce), cluster, timeout):
        raise _missing([0], cluster, timeout)
    return bytes(store.get(_answer(nonce))).decode()


def _hello(rank: int) -> str:
    return f"hello/{rank}"


def _answer(nonce: str) -> str:
    return f"answer/{nonce}"


def _arrival(rank: int) -> str:
    return f"arrived/{rank}"


def _missing(ranks: Sequence[int], cluster: Cluster, timeout: timedelta) -> DistributedError:
    return DistributedError(
        f"rank {cluster.rank} waited {timeout.total_seconds():g} s at {_where(cluster)} for {listed('rank', ranks)} of "
        f"{cluster.world_size}; did they start, and with the same master address?"
    )


def _where(cluster: Cluster) -> str:
    return f"{cluster.master_addr}:{cluster.master_port}"


def agent_serves_store(store: Store, cluster: Cluster, environ: Mapping[str, str]) -> bool:
    """Return whether torchrun's agent serves this store; a script may have made its process group with another one."""
    server = innermost(store)
    is_there = isinstance(server, TCPStore) and str(server.port) == environ.get("MASTER_PORT")
    return is_there and _agent_serves(cluster, environ)


def _agent_serves(cluster: Cluster, environ: Mapping[str, str]) -> bool:
    """Return whether torchrun's agent serves a store at the master address, by these three variables."""
    return (
        environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        and environ.get("MASTER_ADDR") == cluster.master_addr
        and environ.get("MASTER_PORT") == str(cluster.master_port)
    )
