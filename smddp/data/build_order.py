"""Builds one rank's order of a dataset: map-style, sharded, or read from pipes.

Ranks with different data would wait for each other for ever, or train on the wrong samples. So they compare their data
before an order is built, and an error on one rank is an error on all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from smddp.data.fingerprint import fingerprint as fingerprint_of
from smddp.data.order import DataOrder
from smddp.data.order.data_order import Tail
from smddp.data.order.host_sharding import HostShardedSampler, OnChange
from smddp.data.order.sampler import ElasticSampler, EvaluationSampler
from smddp.data.pipes import PipeDataset, PipeOrder
from smddp.data.shards import ShardedDataset, ShardEvaluation, ShardIndex, ShardOrder
from smddp.data.shards.index import INDEX_NAME
from smddp.distributed import Membership
from smddp.errors import DataError

logger = logging.getLogger(__name__)

AnyDataset = Dataset[Any] | ShardedDataset | PipeDataset
"""A map-style dataset, shards read in sequence, or a channel read through pipes."""

_SHARDED = 'say sharded_by_host=True if the channel is "ShardedByS3Key"'


@dataclass(kw_only=True, slots=True, frozen=True)
class OrderOptions:
    """The options of an order, the same on all ranks."""

    global_batch: int
    accumulate: int
    seed: int
    shuffle: bool
    tail: Tail
    fingerprint: str | None
    """The fingerprint of the data on this host. Shards add their own to it."""
    sharded_by_host: bool
    """Whether each host has a different part of the data. If not, every rank has all of it."""
    on_host_change: OnChange
    """What a resume does if the hosts or their parts changed."""


@dataclass(kw_only=True, slots=True, frozen=True)
class RankData:
    """The order and the dataset that feed one rank."""

    order: DataOrder
    fetching: Dataset[Any]
    """Turns the order's indices into samples."""
    seed: int
    """With epoch and sample, decides the random numbers drawn for a sample."""


def make_rank_data(dataset: AnyDataset, options: OrderOptions, membership: Membership) -> RankData:
    """Make the order and dataset that feed this rank in training. Collective: all ranks call it.

    Raise ValueError if a rank lacks data or the numbers do not fit, PeerFailedError if another rank cannot read its
    data.
    """
    if isinstance(dataset, PipeDataset):
        sharded = dataset.channel.sharded_by_host
        order: DataOrder = _pipe_order(dataset, options, membership)
        return RankData(order=order, fetching=dataset.decoder, seed=_seed(options, membership, sharded_by_host=sharded))
    seed = _seed(options, membership, sharded_by_host=options.sharded_by_host)
    if isinstance(dataset, ShardedDataset):
        _share_index(dataset, membership, sharded_by_host=options.sharded_by_host)
        own = dataset.index.fingerprint
        named = own if options.fingerprint is None else fingerprint_of(own, options.fingerprint)
        summary = DatasetSummary(samples=dataset.index.records, fingerprint=named)
        summaries = compare(lambda: summary, membership, sharded_by_host=options.sharded_by_host)
        order = ShardOrder.of(dataset, make_sampler(summaries, options, membership))
        return RankData(order=order, fetching=dataset.decoder, seed=seed)
    summaries = compare(
        lambda: DatasetSummary(samples=_length(dataset), fingerprint=options.fingerprint),
        membership,
        sharded_by_host=options.sharded_by_host,
    )
    return RankData(order=make_sampler(summaries, options, membership), fetching=dataset, seed=seed)


def make_sampler(summaries: Sequence[DatasetSummary], options: OrderOptions, membership: Membership) -> ElasticSampler:
    """Make this rank's order of map-style samples; raise ValueError if the numbers do not fit each other.

    ``summaries`` has one entry for each host, or a single entry if all hosts have the same data.
    """
    cluster = membership.cluster
    common: dict[str, Any] = {
        "global_batch": options.global_batch,
        "accumulate": options.accumulate,
        "seed": options.seed,
        "shuffle": options.shuffle,
        "tail": options.tail,
    }
    if not options.sharded_by_host:
        (all_of_it,) = summaries
        return ElasticSampler(
            all_of_it.samples,
            rank=membership.data_rank.rank,
            world_size=membership.data_rank.size,
            fingerprint=all_of_it.fingerprint,
            **common,
        )
    _check_own_share(membership, "data that is sharded by host")
    fingerprints = [each.fingerprint for each in summaries if each.fingerprint is not None]
    if len(fingerprints) not in (0, len(summaries)):
        raise ValueError(
            f"{len(fingerprints)} of {len(summaries)} hosts gave a fingerprint of their part: give one on all of them, "
            "or on none"
        )
    return HostShardedSampler(
        [each.samples for each in summaries],
        host=cluster.node_rank,
        local_rank=cluster.local_rank,
        local_world_size=cluster.local_world_size,
        fingerprints=fingerprints or None,
        on_change=options.on_host_change,
        **common,
    )


def make_evaluation(
    dataset: AnyDataset, batch_size: int, membership: Membership, *, sharded_by_host: bool, even: bool
) -> tuple[EvaluationSampler | ShardEvaluation, Dataset[Any]]:
    """Make this rank's share for evaluation, and the dataset that turns its indices into samples. Collective.

    With ``even``, all ranks have equally many batches. Raise ValueError if that can't be, or if the dataset has no
    length, comes through pipes or can't be read; PeerFailedError if another rank cannot read its data.
    """
    if even and (sharded_by_host or isinstance(dataset, ShardedDataset)):
        raise ValueError(
            "a sharded model computes on all ranks together, and the ranks would have different numbers of batches: "
            "give evaluation_loader() a dataset with a length, the same on all hosts"
        )
    if isinstance(dataset, PipeDataset):
        raise ValueError(
            f"the channel {dataset.channel.name!r} comes through pipes, of which each can be read once: give "
            'evaluation data as files, by input_mode="File" or "FastFile" of that channel'
        )
    cluster = membership.cluster
    rank, world_size = membership.data_rank.rank, membership.data_rank.size
    if sharded_by_host:
        rank, world_size = cluster.local_rank, cluster.local_world_size
    if isinstance(dataset, ShardedDataset):
        _share_index(dataset, membership, sharded_by_host=sharded_by_host)
        shards = ShardEvaluation(dataset, batch_size=batch_size, rank=rank, world_size=world_size)
        return shards, dataset.decoder
    compare(
        lambda: DatasetSummary(samples=_length(dataset), fingerprint=None), membership, sharded_by_host=sharded_by_host
    )
    size = _length(dataset)
    return EvaluationSampler(size, batch_size=batch_size, rank=rank, world_size=world_size, even=even), dataset


def _seed(options: OrderOptions, membership: Membership, *, sharded_by_host: bool) -> int:
    if not sharded_by_host:
        return options.seed
    # Otherwise all hosts would draw the same numbers for the n-th sample of their parts.
    return options.seed * membership.cluster.node_count + membership.cluster.node_rank


def _pipe_order(dataset: PipeDataset, options: OrderOptions, membership: Membership) -> PipeOrder:
    name = dataset.channel.name
    cannot = {
        f"tail is {options.tail!r}": options.tail != "drop",
        "a fingerprint is given": options.fingerprint is not None,
        f"on_host_change is {options.on_host_change!r}": options.on_host_change != "refuse",
        "sharded_by_host is True": options.sharded_by_host and not dataset.channel.sharded_by_host,
    }
    for what, is_asked in cannot.items():
        if is_asked:
            raise ValueError(
                f"{what}, but the channel {name!r} comes through pipes: unknown before it is read, in a fixed order, "
                "and divided among the hosts by the job; leave that option out"
            )
    _check_own_share(membership, "a channel that comes through pipes")
    cluster = membership.cluster
    order = membership.ranks.agree(
        lambda: PipeOrder(
            dataset,
            global_batch=options.global_batch,
            rank=cluster.rank,
            world_size=cluster.world_size,
            local_world_size=cluster.local_world_size,
            accumulate=options.accumulate,
        )
    )
    records = membership.ranks.gather(lambda: dataset.records)
    if len(set(records)) != 1:
        raise ValueError(
            f"the ranks have records={records} for the channel {name!r}, and would end their epochs after different "
            "numbers of steps: give the same number on all, that of the host with the fewest"
        )
    return order


def _check_own_share(membership: Membership, what: str) -> None:
    if membership.data_parallel is not None:
        raise ValueError(
            f"{what} gives each rank other samples, and tensor parallelism needs the same ones on several ranks: give "
            "all hosts all of the data, as files (FullyReplicated)"
        )


def _length(dataset: Dataset[Any]) -> int:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"{type(dataset).__name__} has no order that could be kept: give it __len__ and __getitem__, or give its "
            "data as shards: smddp.ShardedDataset"
        )
    return len(dataset)


@dataclass(kw_only=True, slots=True, frozen=True)
class DatasetSummary:
    """The size and fingerprint of one rank's data."""

    samples: int
    fingerprint: str | None


@dataclass(kw_only=True, slots=True, frozen=True)
class _Told:
    node_rank: int
    summary: DatasetSummary


def compare(
    look: Callable[[], DatasetSummary], membership: Membership, *, sharded_by_host: bool
) -> list[DatasetSummary]:
    """Gather the summaries of all ranks: one for each host, or a single one if all have the same data. Collective.

    Raise ValueError if ranks that must agree differ, PeerFailedError if ``look`` raised on another rank.
    """
    cluster = membership.cluster
    told = membership.ranks.gather(lambda: _Told(node_rank=cluster.node_rank, summary=look()))
    if not sharded_by_host:
        _check_same(told, range(len(told)), _SHARDED)
        return [told[0].summary]
    hosts = [[rank for rank, each in enumerate(told) if each.node_rank == node] for node in range(cluster.node_count)]
    for ranks in hosts:
        _check_same(told, ranks, "the ranks of one host must have the same part")
    if len({len(ranks) for ranks in hosts}) != 1:
        counts = ", ".join(str(len(ranks)) for ranks in hosts)
        raise ValueError(
            f"the hosts have {counts} ranks: data that is sharded by host needs as many ranks on each; give all "
            "hosts as many, or distribute the data FullyReplicated"
        )
    return [told[ranks[0]].summary for ranks in hosts]


def _share_index(dataset: ShardedDataset, membership: Membership, *, sharded_by_host: bool) -> None:
    """Scan the shards on one rank (one of each host if sharded by host), and send the index to the others. Collective.

    Raise DataError if the shards can't be read or differ between ranks, PeerFailedError if another rank raised
    DataError.
    """
    cluster = membership.cluster
    looks = cluster.local_rank == 0 if sharded_by_host else cluster.is_main
    if looks:
        logger.info("looking at the shards of %s", dataset.source)

    def look() -> int | None:
        if not looks:
            return None
        missing = dataset.index.missing
        if missing and not sharded_by_host:
            raise DataError(
                f"{missing[0]} is not in {dataset.source}, nor are {len(missing) - 1} other shards in its "
                f"{INDEX_NAME}: restore them, or remove {INDEX_NAME} if they were removed on purpose; {_SHARDED}"
            )
        return cluster.node_rank

    # Broadcast one index at a time: all of them together might not fit into memory.
    lookers = membership.ranks.gather(look)
    found: dict[str, Any] | None = None
    for source, node_rank in enumerate(lookers):
        if node_rank is not None:
            index = membership.ranks.from_rank(source, dataset.index.to_json() if cluster.rank == source else None)
            if node_rank == cluster.node_rank or not sharded_by_host:
                found = index

    def adopt() -> None:
        if looks or found is None:
            return
        try:
            dataset.adopt(ShardIndex.from_json(found))
        except DataError as error:
            raise DataError(str(error) if sharded_by_host else f"{error}; {_SHARDED}") from error

    membership.ranks.agree(adopt)


def _check_same(told: Sequence[_Told], ranks: Sequence[int], advice: str) -> None:
    first = ranks[0]
    for rank in ranks:
        if told[rank].summary != told[first].summary:
            raise ValueError(
                f"rank {first} has {_describe(told[first].summary)}, rank {rank} {_describe(told[rank].summary)}: "
                f"they must have the same data; {advice}"
            )


def _describe(summary: DatasetSummary) -> str:
    named = "" if summary.fingerprint is None else f" (fingerprint {summary.fingerprint})"
    return f"{summary.samples} samples{named}"
