"""Check the ranks before training: find hosts that are cut off, garble data, or are slow.

Every host exchanges data with every other one, in as many pairs at a time as possible; then all ranks compute a sum
together. One bad pair does not tell which host is bad; a host that is bad with all others is named.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from smddp.collectives.measure import group_of_all
from smddp.distributed import Membership
from smddp.errors import DistributedError

logger = logging.getLogger(__name__)

_BYTES = 4 * 2**20
_REPEATS = 5
_PATIENCE = timedelta(seconds=30)
_SLOW = 0.5
"""A host is slow if its bandwidth is less than this fraction of the bandwidth among the others."""


@dataclass(kw_only=True, slots=True, frozen=True)
class PairResult:
    """The result of one host's exchange with another one."""

    bandwidth: float = 0.0
    """Bytes a second in each direction, both directions at once."""
    fault: str | None = None
    """The error between the two hosts, or None."""


def check_ranks(membership: Membership) -> None:
    """Check hosts and ranks, in a second or two; all ranks call it before training.

    Rank 0 logs a slow host, if there are more than two. Raise DistributedError on every rank, with the hosts that can't
    be reached or garble data, or the ranks with a wrong sum.
    """
    cluster = membership.cluster
    if cluster.world_size == 1:
        return
    nodes = membership.ranks.gather(lambda: (cluster.node_rank, cluster.host, cluster.local_rank))
    first = {node: rank for rank, (node, _, local) in enumerate(nodes) if local == 0}
    hosts = {node: host for node, host, _ in nodes}
    peers = first if cluster.local_rank == 0 else {}
    # A separate group: a connection that timed out would break later collectives of the same group.
    group = group_of_all(timeout=_PATIENCE)
    found = membership.ranks.gather(lambda: _measure_pairs(cluster.node_rank, peers, group, membership.device))
    dist.destroy_process_group(group)
    pairs = {(nodes[rank][0], peer): result for rank, own in enumerate(found) for peer, result in own.items()}
    # Order: sum only if the exchange found no fault. Ranks that can't reach each other would hang in the sum.
    if faults := _faults_of_hosts(pairs, hosts) or _wrong_sums(membership):
        raise DistributedError(f"The check before training found: {'; '.join(faults)}.")
    if cluster.is_main and pairs:
        typical = statistics.median(result.bandwidth for result in pairs.values())
        logger.info("checked %d hosts: %.2f GB/s between two of them", len(hosts), typical / 1e9)
        for node, own, others in slow_hosts({pair: result.bandwidth for pair, result in pairs.items()}):
            logger.warning(
                "host %s (node %d) is slow: %.2f GB/s with the others, which reach %.2f GB/s among themselves",
                hosts[node],
                node,
                own / 1e9,
                others / 1e9,
            )


def slow_hosts(bandwidths: Mapping[tuple[int, int], float]) -> list[tuple[int, float, float]]:
    """Return the slow hosts, each with its bandwidth and that among the others; ``bandwidths`` is by pair of hosts."""
    slow = []
    for node in sorted({first for first, _ in bandwidths}):
        own = [value for pair, value in bandwidths.items() if node in pair]
        others = [value for pair, value in bandwidths.items() if node not in pair]
        if others and statistics.median(own) < _SLOW * statistics.median(others):
            slow.append((node, statistics.median(own), statistics.median(others)))
    return slow


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return the fewest rounds in which every pair of players meets once, each player in one pair a round."""
    places: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    plan = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        plan.append([(a, b) for a, b in facing if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return plan


def _measure_pairs(
    node: int, first: Mapping[int, int], group: dist.ProcessGroup, device: torch.device
) -> dict[int, PairResult]:
    """Return this host's result with each other host.

    ``first`` maps each node to its first rank; it is empty on ranks that do not exchange.
    """
    players = sorted(first)
    found = {}
    for pairs in rounds(len(players)):
        for a, b in pairs:
            if node in (players[a], players[b]):
                peer = players[b] if node == players[a] else players[a]
                found[peer] = _measure_pair(node, peer, first[peer], group, device)
    return found


def _measure_pair(node: int, peer: int, rank: int, group: dist.ProcessGroup, device: torch.device) -> PairResult:
    own, received = _payload(node, device), torch.empty(_BYTES // 4, dtype=torch.int32, device=device)
    try:
        _exchange(own, received, rank, group)  # connects the two hosts
        started = time.perf_counter()
        for _ in range(_REPEATS):
            _exchange(own, received, rank, group)
        is_right = torch.equal(received, _payload(peer, device))  # waits for the GPU
        seconds = time.perf_counter() - started
    except RuntimeError as error:
        return PairResult(fault=str(error).strip().splitlines()[0])
    if not is_right:
        return PairResult(fault="what was received is not what was sent")
    return PairResult(bandwidth=_BYTES * _REPEATS / seconds)


def _exchange(own: Tensor, received: Tensor, rank: int, group: dist.ProcessGroup) -> None:
    operations = [
        dist.P2POp(dist.isend, own, rank, group=group),
        dist.P2POp(dist.irecv, received, rank, group=group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait(_PATIENCE)


def _payload(node: int, device: torch.device) -> Tensor:
    return torch.arange(_BYTES // 4, dtype=torch.int32, device=device) * 7 + node


def _faults_of_hosts(pairs: Mapping[tuple[int, int], PairResult], hosts: Mapping[int, str]) -> list[str]:
    """Name the hosts that fail with every other host, and the remaining pairs that fail."""
    faulty = {pair: result.fault for pair, result in pairs.items() if result.fault is not None}
    bad = [
        node for node in hosts if len(hosts) > 2 and faulty and all(pair in faulty for pair in pairs if node == pair[1])
    ]
    told = [f"host {hosts[node]} (node {node}): {_first_fault(faulty, node)}" for node in bad]
    rest = {pair: fault for pair, fault in faulty.items() if not set(pair) & set(bad) and pair[0] < pair[1]}
    return told + [f"hosts {hosts[a]} and {hosts[b]}: {fault}" for (a, b), fault in rest.items()]


def _first_fault(faulty: Mapping[tuple[int, int], str], node: int) -> str:
    return next(fault for pair, fault in faulty.items() if pair[1] == node)


def _wrong_sums(membership: Membership) -> list[str]:
    """Return the ranks with a wrong sum."""
    cluster = membership.cluster
    count = 1024
    total = torch.arange(count, dtype=torch.float32, device=membership.device) + cluster.rank
    dist.all_reduce(total)
    ranks = cluster.world_size
    right = torch.arange(count, dtype=torch.float32, device=membership.device) * ranks + ranks * (ranks - 1) // 2
    answers = membership.ranks.gather(lambda: bool(torch.equal(total, right)))
    return [f"rank {rank} has a wrong sum" for rank, is_right in enumerate(answers) if not is_right]
