"""Join and leave the process group: the one place that starts and ends ``torch.distributed``.

A job of one process has a group of one, so that a script may use ``torch.distributed`` for any number of ranks. Nothing
here reduces over that group, and it has no store. A group that the script made before is adopted, and never ended here:
see ``smddp.distributed.script_ranks``.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from smddp.accelerator import DEVICE_VARIABLE, check_float64, device_kind, set_current_device
from smddp.cluster import Cluster
from smddp.cluster.slurm import unused_nodes
from smddp.cluster.strict_variables import check_timeout, read_timeout
from smddp.display_text import counted
from smddp.distributed.device import (
    CPU,
    backend_of,
    choose_backend,
    gpus_per_rank,
    missing_gpus,
    rank_device,
    share_gpus,
    visible_gpus,
)
from smddp.distributed.gloo_drain import drain_gloo
from smddp.distributed.ranks import Ranks
from smddp.distributed.script_ranks import detect_cluster, read_group
from smddp.distributed.store import PREFIX, agent_serves_store, connect, connect_again, meet
from smddp.errors import DistributedError
from smddp.process.heartbeat import Heartbeat
from smddp.process.script_multiprocessing import refuse_in_import

logger = logging.getLogger(__name__)

_FAREWELL_SECONDS = 30.0
_USE_NCCL2 = "TORCH_DIST_USE_NCCL2"
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRank:
    """The share of the data that a rank computes on. Under tensor parallelism several ranks compute on the same one."""

    rank: int
    """The share's number."""
    size: int
    """The number of shares."""
    first_rank: int
    """The first of the ranks that compute on this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The result of joining: this rank, its group, device and store."""

    cluster: Cluster
    """This rank and the other ranks of its job."""

    backend: str
    """The process group's backend, as PyTorch writes it."""

    device: torch.device
    """The device to compute on: the GPU of the local rank, or the CPU."""

    store: Store | None
    """The key-value store that all ranks see, under ``prefix``; None for a job of one process."""

    is_adopted: bool = False
    """Whether the script made the process group; then ``leave`` does not end it."""

    prefix: str = ""
    """The prefix of the keys in ``store``, new each time the ranks join."""

    data_parallel: DataRank | None = None
    """The share of the data that this rank computes on with others; None if each rank has a share of its own."""

    @property
    def data_rank(self) -> DataRank:
        """The share of the data that this rank computes on."""
        rank = self.cluster.rank
        return self.data_parallel or DataRank(rank=rank, size=self.cluster.world_size, first_rank=rank)

    @property
    def repeats(self) -> bool:
        """Whether an earlier rank computes the same results, so that this rank's are not counted."""
        return self.data_rank.first_rank != self.cluster.rank

    @property
    def agent_serves_store(self) -> bool:
        """Whether the launcher's agent on the first host serves ``store``; otherwise rank 0 does."""
        return self.store is not None and agent_serves_store(self.store, self.cluster, os.environ)

    @property
    def control_device(self) -> torch.device:
        """The device of the small tensors for agreements: the CPU, unless the backend carries no CPU tensors."""
        carries_cpu = self.backend != "smddp" and backend_of(self.backend, "cpu") is not None
        return CPU if carries_cpu else self.device

    @property
    def ranks(self) -> Ranks:
        """The ranks, with the verbs by which they agree and share."""
        return Ranks(rank=self.cluster.rank, world_size=self.cluster.world_size, device=self.control_device)

    def connect(self, timeout: timedelta) -> Store | None:
        """Return a second connection to ``store``, for another thread; None without a store."""
        return None if self.store is None else connect_again(self.store, self.prefix, timeout)


_current: Membership | None = None


def current_membership() -> Membership | None:
    """Return this process's membership, or None before ``join`` and after ``leave``."""
    return _current


def join(cluster: Cluster | None = None, *, backend: str | None = None, timeout: float | None = None) -> Membership:
    """Join the job's process group, so that ``torch.distributed`` and ``DistributedDataParallel`` can be used.

    If the script has called ``torch.distributed.init_process_group``, that group is adopted, with its backend, ranks
    and timeout.

    Args:
        cluster: This rank; detected from the environment if None.
        backend: nccl, gloo, mpi or smddp; None chooses nccl for GPUs (with gloo for CPU tensors) and gloo without.
        timeout: Seconds to wait for the other ranks, now and in each collective; None is SMDDP_TIMEOUT, or 1800.

    Raises:
        UnguardedScriptError: Multiprocessing has started this process, and it still imports the script.
        DistributedError: This process has joined already, the timeout is invalid, backend and device do not fit, the
            cluster contradicts the script's own process group, ranks are missing, or each of a launcher's ranks spawned
            ranks again.

    Examples:
        In a script without ``smddp.run``, under any launcher:

            membership = smddp.join()
            model = DistributedDataParallel(build().to(membership.device))
            ...
            smddp.leave()
    """
    global _current
    refuse_in_import("smddp.join")
    if _current is not None:
        raise DistributedError(
            "this process has joined a process group already; call smddp.leave() before joining again"
        )
    seconds = read_timeout(os.environ) if timeout is None else check_timeout(timeout, f"timeout={timeout!r}")
    if dist.is_initialized():
        _current = _adopt(cluster, backend, timedelta(seconds=seconds))
    else:
        cluster = cluster or detect_cluster()
        _current = _open(cluster, backend, timedelta(seconds=seconds))
    if _current.cluster.is_main:
        on_gpu, world_size = _current.device.type != "cpu", _current.cluster.world_size
        logger.info(
            "training on %s of %s by %s%s",
            counted(world_size, "GPU") if on_gpu else counted(world_size, "CPU process", "CPU processes"),
            counted(_current.cluster.node_count, "host"),
            _current.backend,
            "" if on_gpu else _why_no_gpu(),
        )
    return _current


def _why_no_gpu() -> str:
    return f": {DEVICE_VARIABLE}=cpu" if os.environ.get(DEVICE_VARIABLE) == "cpu" else ": PyTorch sees no GPU"


def leave(*, together: bool = False) -> None:
    """Leave the process group; do nothing if the process has not joined.

    Objects that refer to the group, such as DistributedDataParallel, may remain, but can't train any more. Collectives
    that were begun and never waited for get ten seconds.

    Rank 0 waits for the other ranks to leave before it, for half a minute at most.

    Args:
        together: Let every rank wait for the others. A launcher kills the remaining ranks soon after the first rank
            ends with a code other than 0, mpirun within a second.
    """
    global _current
    membership, _current = _current, None
    if membership is None:
        return
    # Order: 1. wait until every rank has opened its group, 2. drain gloo, 3. destroy the group, 4. say farewell through
    # the store, which rank 0 may serve: so it ends last. Bounds: 1 and 4 half a minute each, 2 ten seconds.
    if not membership.is_adopted and dist.is_initialized():  # a script may have ended it
        if membership.store is not None:
            _await_joined(membership.cluster, membership.store)
        drain_gloo()
        dist.destroy_process_group()
    if membership.store is not None:
        _say_farewell(membership.cluster, membership.store, together=together)


def _open(cluster: Cluster, backend: str | None, timeout: timedelta) -> Membership:
    if cluster.world_size == 1:
        if cluster.launcher == "single" and (why := unused_nodes(os.environ)) is not None:
            logger.warning("NODES ARE LEFT UNUSED: %s", why)
        device = _take_device(cluster, None)
        # An empty environment: a job may ask for smddp, which serves only several ranks.
        chosen = choose_backend(backend, device, {})
        with _on_loopback():
            _init_group(chosen, HashStore(), cluster, timeout, device)
        return Membership(cluster=cluster, backend=chosen, device=device, store=None)
    for name, value in interface_settings(os.environ).items():
        os.environ[name] = value
        logger.info("set %s=%s, the network interface that SageMaker names", name, value)
    job_store = connect(cluster, timeout, os.environ, serve=True)
    prefix = meet(job_store, cluster, timeout)
    store = PrefixStore(prefix, job_store)
    with Heartbeat("all ranks have arrived and open the process group") if cluster.is_main else nullcontext():
        device = _take_device(cluster, store)
        chosen = choose_backend(backend, device, os.environ)
        _init_group(chosen, store, cluster, timeout, device)
    store.set(_joined(cluster.rank), "")
    return Membership(cluster=cluster, backend=chosen, device=device, store=store, prefix=f"{PREFIX}/{prefix}")


def _take_device(cluster: Cluster, store: Store | None) -> torch.device:
    own = visible_gpus(os.environ)
    visible = [own] if store is None else share_gpus(store, cluster, own)
    device = rank_device(cluster, visible, per_rank=gpus_per_rank(os.environ))
    set_current_device(device)
    check_float64(device)
    if device.type == "cpu" and cluster.local_rank == 0 and (why := missing_gpus(os.environ)) is not None:
        logger.warning("TRAINING RUNS ON THE CPU: %s", why)
    return device


def _init_group(backend: str, store: Store, cluster: Cluster, timeout: timedelta, device: torch.device) -> None:
    # With a device_id NCCL connects now, so that a mistake is reported here, and it need not guess the device in a
    # barrier. One rank connects to none; and a group that is bound to one device refuses gradients of a rank's others.
    has_several = gpus_per_rank(os.environ) > 1
    is_bound = "nccl" in backend and cluster.world_size > 1 and not has_several
    if "nccl" in backend and has_several and hasattr(dist, "ProcessGroupNCCL2") and _USE_NCCL2 not in os.environ:
        # torch reads it when the first group is made. Its nccl2 always binds a group to one device.
        os.environ[_USE_NCCL2] = "0"
        logger.info("set %s=0: nccl2 reduces on one GPU of a rank, and each rank has several", _USE_NCCL2)
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=cluster.rank,
            world_size=cluster.world_size,
            timeout=timeout,
            device_id=device if is_bound else None,
        )
    except RuntimeError as error:
        raise DistributedError(
            f"rank {cluster.rank} on {cluster.host} could not open the process group with backend {backend}: {error}"
        ) from error


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let gloo, which listens even for one process, listen on the loopback interface only."""
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback is None or _GLOO_INTERFACE in os.environ:
        yield
        return
    os.environ[_GLOO_INTERFACE] = loopback
    try:
        yield
    finally:
        del os.environ[_GLOO_INTERFACE]


def _adopt(cluster: Cluster | None, backend: str | None, timeout: timedelta) -> Membership:
    """Adopt the process group that the script has made."""
    config = dist.get_backend_config()
    backends = {part.rpartition(":")[2] for part in config.split(",")}
    if backend is not None and backend not in backends:
        raise DistributedError(
            f"backend={backend!r}, but the script has made a process group with {config}; leave one of them out"
        )
    group = read_group(cluster, timeout)
    if group.cluster.world_size == 1:
        store, prefix = None, ""
    else:
        store, prefix = group.store, group.prefix
    carries_gpu = backend_of(config, device_kind() or "cuda") is not None
    device = _take_device(group.cluster, group.store) if carries_gpu else CPU
    return Membership(cluster=group.cluster, backend=config, device=device, store=store, prefix=prefix, is_adopted=True)


def interface_settings(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return variables that point gloo and NCCL to SageMaker's network interface, unless the user has set them."""
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
    return {name: interface for name in (_GLOO_INTERFACE, "NCCL_SOCKET_IFNAME") if name not in environ}


def _joined(rank: int) -> str:
    """Return the key that a rank sets once its process group is open."""
    return f"joined/{rank}"


def _await_joined(cluster: Cluster, store: Store) -> None:
    """Wait for ranks that still connect: gloo fails in a rank whose peer is gone before it has connected.

    A rank of a script without collectives may leave while another has only begun.
    """
    with suppress(RuntimeError):  # a missing rank reports its own error, or the launcher does
        store.wait([_joined(rank) for rank in range(cluster.world_size)], timedelta(seconds=_FAREWELL_SECONDS))


def _say_farewell(cluster: Cluster, store: Store, *, together: bool) -> None:
    try:
        store.set(f"left/{cluster.rank}", "")
        if not (cluster.is_main or together):
            return
        store.wait([f"left/{rank}" for rank in range(cluster.world_size)], timedelta(seconds=_FAREWELL_SECONDS))
    except RuntimeError:
        if cluster.is_main:  # the others only learn that rank 0, and the store, are gone
            logger.warning("not every rank has left after %g s; going ahead", _FAREWELL_SECONDS)
