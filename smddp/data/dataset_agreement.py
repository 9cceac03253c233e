"""Compares the ranks' data before an order is built.

Ranks with different data would wait for each other for ever, or train on the wrong samples. So they compare before the
first step, and an error on one rank is an error on all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from smddp.data.shards import ShardedDataset, ShardIndex
from smddp.data.shards.index import INDEX_NAME
from smddp.distributed import Membership
from smddp.errors import DataError

logger = logging.getLogger(__name__)

_SHARDED = 'say sharded_by_host=True if the channel is "ShardedByS3Key"'


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


def share_index(dataset: ShardedDataset, membership: Membership, *, sharded_by_host: bool) -> None:
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
                f"{missing[0]} is not in {dataset.source}, nor are {len(missing) - 1} other shards that {INDEX_NAME} "
                f"there knows: restore them, or remove {INDEX_NAME} if that is as it should be; {_SHARDED}"
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
