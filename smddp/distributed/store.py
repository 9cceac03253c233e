"""The key-value store that the ranks meet in: torch's TCPStore, made here so that others may use it too.

Where torchrun's agent already serves one at the master's address, every rank is its client; otherwise rank 0 serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from smddp.cluster import Cluster
from smddp.errors import DistributedError


def connect(cluster: Cluster, timeout: timedelta, environ: Mapping[str, str], *, serve: bool) -> Store:
    """A connection of its own to the job's store, under a prefix of this attempt to run the job.

    Args:
        cluster: Where the store is, and who serves it.
        timeout: How long to wait for the server, and for keys.
        environ: The environment; torchrun's variables tell of its agent's store and of restarts.
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
    return PrefixStore(f"smddp/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def await_all(store: Store, cluster: Cluster, timeout: timedelta) -> None:
    """Returns once every rank has called it.

    Raises:
        DistributedError: If ranks are missing when the time is over; it names them.
    """
    keys = [f"arrived/{rank}" for rank in range(cluster.world_size)]
    store.set(keys[cluster.rank], cluster.host)
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:
        missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        raise DistributedError(
            f"rank {cluster.rank} waited {timeout.total_seconds():g} s at {cluster.master_addr}:{cluster.master_port} "
            f"for rank {', '.join(missing)} of {cluster.world_size}; did they start, and with the same master address?"
        ) from error


def _agent_serves(cluster: Cluster, environ: Mapping[str, str]) -> bool:
    """Whether torchrun's agent serves a store at the cluster's master address; it says so in these three variables."""
    return (
        environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        and environ.get("MASTER_ADDR") == cluster.master_addr
        and environ.get("MASTER_PORT") == str(cluster.master_port)
    )
