"""The order of a dataset on one rank, made once all ranks have told what they have of it.

Ranks whose data differ would wait for each other for ever, or train on something that no one asked for: so they compare
before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from smddp.data.host_sharding import HostShardedSampler, OnChange
from smddp.data.partition import Tail
from smddp.data.sampler import ElasticSampler
from smddp.distributed import Membership, on_each_rank


@dataclass(kw_only=True, slots=True, frozen=True)
class OrderOptions:
    """What is asked of an order, the same on all ranks."""

    global_batch: int
    accumulate: int
    seed: int
    shuffle: bool
    tail: Tail
    sharded_by_host: bool
    """Whether each host has another part of the data; else all ranks have all of it."""
    on_host_change: OnChange
    """What a resume does if the hosts, or their parts, are others."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Holding:
    """What a rank has of the data."""

    samples: int
    fingerprint: str | None


@dataclass(kw_only=True, slots=True, frozen=True)
class _Told:
    node_rank: int
    local_world_size: int
    holding: Holding


def make_sampler(look: Callable[[], Holding], options: OrderOptions, membership: Membership) -> ElasticSampler:
    """Make the order of this rank; all ranks call it.

    Args:
        look: gives what this rank has; it may raise.
        options: what is asked.
        membership: the ranks.

    Raises:
        ValueError: the ranks have not what they must, or the numbers do not fit each other.
        PeerFailedError: another rank's ``look`` raised.
    """
    cluster = membership.cluster
    told = on_each_rank(
        lambda: _Told(node_rank=cluster.node_rank, local_world_size=cluster.local_world_size, holding=look()),
        membership,
    )
    common: dict[str, Any] = {
        "global_batch": options.global_batch,
        "accumulate": options.accumulate,
        "seed": options.seed,
        "shuffle": options.shuffle,
        "tail": options.tail,
    }
    if not options.sharded_by_host:
        _check_same(told, range(len(told)), 'say sharded_by_host=True if the channel is "ShardedByS3Key"')
        own = told[cluster.rank].holding
        return ElasticSampler(
            own.samples, rank=cluster.rank, world_size=cluster.world_size, fingerprint=own.fingerprint, **common
        )
    hosts = [[rank for rank, each in enumerate(told) if each.node_rank == node] for node in range(cluster.node_count)]
    for ranks in hosts:
        _check_same(told, ranks, "the ranks of one host must have the same part")
    if len({len(ranks) for ranks in hosts}) != 1:
        counts = ", ".join(str(len(ranks)) for ranks in hosts)
        raise ValueError(
            f"the hosts have {counts} ranks: data that is sharded by host needs as many ranks on each; give all "
            "hosts as many, or distribute the data FullyReplicated"
        )
    holdings = [told[ranks[0]].holding for ranks in hosts]
    fingerprints = [each.fingerprint for each in holdings if each.fingerprint is not None]
    return HostShardedSampler(
        [each.samples for each in holdings],
        host=cluster.node_rank,
        local_rank=cluster.local_rank,
        local_world_size=cluster.local_world_size,
        fingerprints=fingerprints if len(fingerprints) == len(holdings) else None,
        on_change=options.on_host_change,
        **common,
    )


def _check_same(told: Sequence[_Told], ranks: Sequence[int], advice: str) -> None:
    first = ranks[0]
    for rank in ranks:
        if told[rank].holding != told[first].holding:
            raise ValueError(
                f"rank {first} has {_describe(told[first].holding)}, rank {rank} {_describe(told[rank].holding)}: "
                f"they must have the same data; {advice}"
            )


def _describe(holding: Holding) -> str:
    named = "" if holding.fingerprint is None else f" (fingerprint {holding.fingerprint})"
    return f"{holding.samples} samples{named}"
