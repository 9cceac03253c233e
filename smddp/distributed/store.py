"""The key-value store that the ranks meet in: torch's TCPStore, made here so that others may use it too.

Where torchrun's agent already serves one at the master's address, every rank is its client; otherwise rank 0 serves.

An agent's store outlives the ranks, and no count in their environment tells one attempt from another on all nodes:
torchrun counts restarts on each node by itself (https://github.com/pytorch/pytorch/issues/108158). So each meeting has
a prefix of its own, which rank 0 draws and tells each rank in answer to that one's nonce. Whatever an earlier attempt
left is an answer to another nonce.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from smddp.cluster import Cluster
from smddp.errors import DistributedError

PREFIX = "smddp"
"""Of all keys that ranks write."""

NEWEST = "meeting"
"""Where the prefix of the last meeting stands, for who serves the store and is no rank."""

_LOOK_SECONDS = 0.01


def connect(cluster: Cluster, timeout: timedelta, environ: Mapping[str, str], *, serve: bool) -> Store:
    """Return a new connection to the job's store, which may hold keys of earlier attempts.

    Args:
        cluster: Where the store is, and who serves it.
        timeout: How long to wait for the server, and for keys.
        environ: The environment; torchrun's variables tell of its agent's store.
        serve: Whether rank 0 shall serve the store if torchrun's agent does not: at a process's first connection.

    Raises:
        DistributedError: If the server is not reached in time, or cannot be started.
    """
    is_server = serve and cluster.rank == 0 and not _agent_serves(cluster, environ)
    address = f"{cluster.master_addr}:{cluster.master_port}"
    try:
        store = TCPStore(
            cluster.master_addr,
            cluster.master_port,
            is_master=is_server,
            timeout=timeout,
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        what = "could not open" if is_server else "could not reach"
        raise DistributedError(
            f"rank {cluster.rank} on {cluster.host} {what} the master at {address} within "
            f"{timeout.total_seconds():g} s ({error}); is the address right, is rank 0 running, is the port free and "
            "open between the hosts?"
        ) from error
    return PrefixStore(PREFIX, store)


def innermost(store: Store) -> Store:
    """Return the store itself, below its prefixes."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def connect_again(store: Store, prefix: str, timeout: timedelta) -> Store:
    """Return a connection of its own to a store, for a thread: while one waits in a TCPStore, another one can't use it.

    Args:
        store: What was connected to, under whatever prefixes.
        prefix: That of the new one's keys, the whole of it.
        timeout: How long to wait for the server, and for keys.
    """
    store = innermost(store)
    if isinstance(store, TCPStore):
        store = TCPStore(store.host, store.port, is_master=False, timeout=timeout, wait_for_workers=False)
    return PrefixStore(prefix, store)


def meet(store: Store, cluster: Cluster, timeout: timedelta) -> str:
    """Meet the other ranks: returns once every rank has called it.

    Returns:
        The prefix of this meeting's keys in the store, the same on all ranks and another one at each meeting.

    Raises:
        DistributedError: If ranks are missing when the time is over; it names them.
    """
    if cluster.is_main:
        return _lead(store, cluster, timeout)
    prefix = _ask(store, cluster, timeout)
    meeting = PrefixStore(prefix, store)
    arrivals = [_arrival(rank) for rank in range(cluster.world_size)]
    meeting.set(arrivals[cluster.rank], "")
    try:
        meeting.wait(arrivals, timeout)
    except RuntimeError as error:
        missing = [rank for rank, arrival in enumerate(arrivals) if not meeting.check([arrival])]
        raise _missing(missing, cluster, timeout) from error
    return prefix


def _lead(store: Store, cluster: Cluster, timeout: timedelta) -> str:
    """Draw the prefix, and tell it to each rank; rank 0's part.

    The hello found first may be of an earlier attempt: each is looked at until its rank has arrived.
    """
    prefix = f"meeting/{secrets.token_hex(8)}"
    meeting = PrefixStore(prefix, store)
    meeting.set(_arrival(0), "")
    store.set(NEWEST, prefix)
    missing = set(range(1, cluster.world_size))
    answered: dict[int, bytes] = {}
    deadline = time.monotonic() + timeout.total_seconds()
    while missing:
        for rank in sorted(missing):
            if store.check([_hello(rank)]) and (nonce := bytes(store.get(_hello(rank)))) != answered.get(rank):
                store.set(_answer(nonce.decode()), prefix)
                answered[rank] = nonce
        missing = {rank for rank in missing if not meeting.check([_arrival(rank)])}
        if missing and time.monotonic() > deadline:
            raise _missing(sorted(missing), cluster, timeout)
        time.sleep(_LOOK_SECONDS if missing else 0)
    return prefix


def _ask(store: Store, cluster: Cluster, timeout: timedelta) -> str:
    """Ask rank 0 for the prefix; every other rank's part."""
    nonce = secrets.token_hex(8)
    store.set(_hello(cluster.rank), nonce)
    try:
        store.wait([_answer(nonce)], timeout)
    except RuntimeError as error:
        raise _missing([0], cluster, timeout) from error
    return bytes(store.get(_answer(nonce))).decode()


def _hello(rank: int) -> str:
    return f"hello/{rank}"


def _answer(nonce: str) -> str:
    return f"answer/{nonce}"


def _arrival(rank: int) -> str:
    return f"arrived/{rank}"


def _missing(ranks: Sequence[int], cluster: Cluster, timeout: timedelta) -> DistributedError:
    return DistributedError(
        f"rank {cluster.rank} waited {timeout.total_seconds():g} s at {cluster.master_addr}:{cluster.master_port} "
        f"for rank {', '.join(map(str, ranks))} of {cluster.world_size}; did they start, and with the same master "
        "address?"
    )


def _agent_serves(cluster: Cluster, environ: Mapping[str, str]) -> bool:
    """Return whether torchrun's agent serves a store at the master address, as it says in these three variables."""
    return (
        environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        and environ.get("MASTER_ADDR") == cluster.master_addr
        and environ.get("MASTER_PORT") == str(cluster.master_port)
    )
