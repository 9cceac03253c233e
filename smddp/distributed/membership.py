"""Joining the process group, and leaving it: the one place that starts and ends ``torch.distributed``.

A job of one process joins nothing: it has a device, and no group and no store.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from smddp.cluster import Cluster
from smddp.cluster.timeout import check_timeout, read_timeout
from smddp.distributed.backend import choose_backend
from smddp.distributed.device import CPU, rank_device
from smddp.distributed.gloo_drain import drain_gloo
from smddp.distributed.store import PREFIX, connect, connect_again, meet
from smddp.errors import DistributedError

logger = logging.getLogger(__name__)

_FAREWELL_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a rank has once it joined."""

    cluster: Cluster
    """Who it is, among whom."""

    backend: str | None
    """The process group's backend, as PyTorch writes it; None for a job of one process, which has no group."""

    device: torch.device
    """The device to compute on: the GPU of the local rank, or the CPU."""

    store: Store | None
    """The key-value store that all ranks see, under ``prefix``; None for a job of one process."""

    prefix: str = ""
    """That of the keys in ``store``: of this joining, and of no earlier one in the same store."""

    @property
    def control_device(self) -> torch.device:
        """Where the small tensors live by which ranks agree: the CPU, unless the backend only knows CUDA."""
        return self.device if self.backend == "smddp" else CPU

    def connect(self, timeout: timedelta) -> Store | None:
        """A connection of its own to ``store``, for a thread."""
        return None if self.store is None else connect_again(self.store, self.prefix, timeout)


_current: Membership | None = None


def current_membership() -> Membership | None:
    """What this process joined, or None before ``join`` and after ``leave``."""
    return _current


def join(cluster: Cluster | None = None, *, backend: str | None = None, timeout: float | None = None) -> Membership:
    """Joins the job's process group, so that ``torch.distributed`` and ``DistributedDataParallel`` can be used.

    Args:
        cluster: Where this process is; detected from the environment if None.
        backend: nccl, gloo, mpi or smddp; None chooses nccl for GPUs (with gloo for CPU tensors) and gloo without.
        timeout: Seconds to wait for the other ranks, now and in each collective; None is SMDDP_TIMEOUT, or 1800.

    Raises:
        DistributedError: If this process has joined already, the timeout is no time, backend and device do not fit, or
            ranks are missing.
    """
    global _current
    if _current is not None or dist.is_initialized():
        raise DistributedError(
            "this process has joined a process group already; call smddp.leave() before joining again"
        )
    seconds = read_timeout(os.environ) if timeout is None else check_timeout(timeout, f"timeout={timeout!r}")
    cluster = cluster or Cluster.detect()
    device = rank_device(cluster)
    chosen = choose_backend(backend, device, os.environ)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, prefix = None, ""
    if cluster.world_size > 1:
        store, prefix = _open_group(cluster, chosen, timedelta(seconds=seconds))
    _current = Membership(
        cluster=cluster, backend=chosen if store is not None else None, device=device, store=store, prefix=prefix
    )
    if cluster.is_main:
        logger.info(
            "training on %d %s of %d host(s), %s",
            cluster.world_size,
            "GPU(s)" if device.type == "cuda" else "CPU process(es), as PyTorch sees no GPU,",
            cluster.node_count,
            f"backend {chosen}" if store is not None else "without a process group",
        )
    return _current


def leave(*, together: bool = False) -> None:
    """Leaves the process group; does nothing for a process that has not joined.

    What still holds the group, such as DistributedDataParallel, may stay, and can't be trained with any more. A
    collective that was begun and never waited for is given ten seconds.

    Whoever serves the store waits for the other ranks to leave before it, for half a minute at most.

    Args:
        together: Every rank waits for the others so. A launcher kills who is still there soon after the first rank
            ended with a code other than 0, mpirun within a second.
    """
    global _current
    membership, _current = _current, None
    if membership is None or membership.store is None:
        return
    drain_gloo()
    dist.destroy_process_group()
    _say_farewell(membership.cluster, membership.store, together=together)


def _open_group(cluster: Cluster, backend: str, timeout: timedelta) -> tuple[Store, str]:
    for name, value in interface_settings(os.environ).items():
        os.environ[name] = value
        logger.info("set %s=%s, the network interface that SageMaker names", name, value)
    job_store = connect(cluster, timeout, os.environ, serve=True)
    prefix = meet(job_store, cluster, timeout)
    store = PrefixStore(prefix, job_store)
    try:
        dist.init_process_group(backend, store=store, rank=cluster.rank, world_size=cluster.world_size, timeout=timeout)
    except RuntimeError as error:
        raise DistributedError(
            f"rank {cluster.rank} on {cluster.host} could not open the process group with backend {backend}: {error}"
        ) from error
    return store, f"{PREFIX}/{prefix}"


def interface_settings(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The variables that lead gloo and NCCL to SageMaker's network interface, where the user has not set them."""
    interface = environ.get("SM_NETWORK_INTERFACE_NAME")
    if not interface:
        return {}
    present = [name for _, name in socket.if_nameindex()]
    if interface not in present:
        logger.warning(
            "SageMaker names the network interface %r, and this host has %s: it is left to gloo and NCCL to choose",
            interface,
            ", ".join(present),
        )
        return {}
    return {name: interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name not in environ}


def _say_farewell(cluster: Cluster, store: Store, *, together: bool) -> None:
    store.set(f"left/{cluster.rank}", "")
    if not (cluster.is_main or together):
        return
    try:
        store.wait([f"left/{rank}" for rank in range(cluster.world_size)], timedelta(seconds=_FAREWELL_SECONDS))
    except RuntimeError:
        if cluster.is_main:  # to the others it is the same that rank 0, and the store with it, has gone ahead
            logger.warning("not every rank has left after %g s; going ahead", _FAREWELL_SECONDS)
