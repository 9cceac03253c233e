"""The order of a dataset of any kind on one rank, made once all ranks have told what they have of it.

Ranks whose data differ would wait for each other for ever, or train on something that no one asked for: so they compare
before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.data import Dataset

from smddp.data.host_sharding import HostShardedSampler, OnChange
from smddp.data.order import Order
from smddp.data.partition import Tail
from smddp.data.pipes import PipeDataset, PipeOrder
from smddp.data.sampler import ElasticSampler, EvaluationSampler
from smddp.data.shards import ShardedDataset, ShardEvaluation, ShardIndex, ShardOrder
from smddp.distributed import Membership, on_each_rank

AnyDataset = Dataset[Any] | ShardedDataset | PipeDataset
"""With a length; read in sequence; or coming through pipes."""


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


def make_order(
    dataset: AnyDataset, options: OrderOptions, membership: Membership, *, fingerprint: str | None
) -> tuple[Order, Dataset[Any]]:
    """Make the order of this rank for training, and give what fetches its samples; all ranks call it.

    Args:
        dataset: the data, or this host's part of them.
        options: what is asked.
        membership: the ranks.
        fingerprint: of the data; shards have one of their own.

    Raises:
        ValueError: the ranks have not what they must, the numbers do not fit each other, or the data cannot be read.
        PeerFailedError: another rank could not look at its data.
    """
    if isinstance(dataset, PipeDataset):
        return _pipe_order(dataset, options, membership), dataset.decoder
    if isinstance(dataset, ShardedDataset):
        adopt = _exchange_index(dataset, membership, sharded_by_host=options.sharded_by_host)

        def look() -> Holding:
            adopt()
            return Holding(samples=dataset.index.records, fingerprint=dataset.index.fingerprint)

        return ShardOrder.of(dataset, make_sampler(look, options, membership)), dataset.decoder
    return (
        make_sampler(lambda: Holding(samples=_length(dataset), fingerprint=fingerprint), options, membership),
        dataset,
    )


def make_evaluation(
    dataset: AnyDataset, batch_size: int, membership: Membership
) -> tuple[EvaluationSampler | ShardEvaluation, Dataset[Any]]:
    """Make the share of this rank for evaluation, and give what fetches its samples; of shards, all ranks call it.

    Raises:
        ValueError: the dataset has no length or comes through pipes, a number is out of its range, or the shards cannot
            be read.
        PeerFailedError: another rank could not look at its data.
    """
    cluster = membership.cluster
    if isinstance(dataset, PipeDataset):
        raise ValueError(
            f"the channel {dataset.channel.name!r} comes through pipes, of which each can be read once: give "
            'evaluation data as files, by input_mode="File" or "FastFile" of that channel'
        )
    if isinstance(dataset, ShardedDataset):
        on_each_rank(_exchange_index(dataset, membership, sharded_by_host=False), membership)
        shards = ShardEvaluation(dataset, batch_size=batch_size, rank=cluster.rank, world_size=cluster.world_size)
        return shards, dataset.decoder
    sampler = EvaluationSampler(
        _length(dataset), batch_size=batch_size, rank=cluster.rank, world_size=cluster.world_size
    )
    return sampler, dataset


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


def _exchange_index(dataset: ShardedDataset, membership: Membership, *, sharded_by_host: bool) -> Callable[[], None]:
    """Let one rank go through the shards, or one of each host; give what makes this one take over what that found."""
    cluster = membership.cluster
    looks = cluster.local_rank == 0 if sharded_by_host else cluster.is_main
    told = on_each_rank(lambda: dataset.index.to_json() if looks else None, membership)
    if looks:
        return lambda: None
    found = told[cluster.rank - cluster.local_rank if sharded_by_host else 0]
    assert found is not None
    return partial(_adopt, dataset, found)


def _adopt(dataset: ShardedDataset, found: dict[str, Any]) -> None:
    dataset.adopt(ShardIndex.from_json(found))


def _pipe_order(dataset: PipeDataset, options: OrderOptions, membership: Membership) -> PipeOrder:
    if options.tail != "drop":
        raise ValueError(
            f"tail is {options.tail!r}, but the channel {dataset.channel.name!r} comes through pipes, which end when "
            'they end: only "drop" can be had'
        )
    cluster = membership.cluster
    return PipeOrder(
        dataset,
        global_batch=options.global_batch,
        rank=cluster.rank,
        world_size=cluster.world_size,
        local_world_size=cluster.local_world_size,
        accumulate=options.accumulate,
    )


def _length(dataset: Dataset[Any]) -> int:
    if not hasattr(dataset, "__len__"):
        raise ValueError(
            f"{type(dataset).__name__} has no length, and so no order that could be kept; give it __len__, or its data "
            "as shards: smddp.data.shards.ShardedDataset"
        )
    return len(dataset)
