"""What the ranks tell each other of their data, before there is an order of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from smddp.cluster import Cluster
from smddp.data import ElasticSampler, HostShardedSampler
from smddp.data.build_order import DatasetSummary, OrderOptions, compare, make_sampler
from smddp.distributed import Membership, Ranks

Make = Callable[..., ElasticSampler]


def member(rank: int, world_size: int, local_world_size: int) -> Membership:
    node_rank, local_rank = divmod(rank, local_world_size)
    cluster = Cluster(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        node_rank=node_rank,
        node_count=world_size // local_world_size,
        hosts=tuple(f"algo-{number}" for number in range(world_size // local_world_size)),
        master_addr="127.0.0.1",
        master_port=1,
        launcher="torchrun",
    )
    return Membership(cluster=cluster, backend="gloo", device=torch.device("cpu"), store=None)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """The order of one rank of four, two on each host, that have these summaries."""

    def order(rank: int, summaries: list[DatasetSummary], **asked: Any) -> ElasticSampler:
        members = [member(each, 4, 2) for each in range(4)]

        def gather(_ranks: Ranks, action: Callable[[], Any]) -> list[Any]:
            own = action()
            others = (
                type(own)(node_rank=each.cluster.node_rank, summary=summary)
                for each, summary in zip(members, summaries, strict=True)
            )
            return [own if each == rank else other for each, other in enumerate(others)]

        monkeypatch.setattr(Ranks, "gather", gather)
        defaults = {"accumulate": 1, "seed": 0, "shuffle": True, "tail": "drop"}
        defaults |= {"fingerprint": None, "on_host_change": "refuse"}
        options = OrderOptions(**{**defaults, "global_batch": 8, "sharded_by_host": False, **asked})
        found = compare(lambda: summaries[rank], members[rank], sharded_by_host=options.sharded_by_host)
        return make_sampler(found, options, members[rank])

    return order


def test_all_ranks_with_the_same_data_share_each_batch(make: Make) -> None:
    orders = [make(rank, [DatasetSummary(samples=24, fingerprint="f")] * 4) for rank in range(4)]
    assert sorted(sample for order in orders for batch in order for sample in batch) == list(range(24))
    assert {order.fingerprint for order in orders} == {"f"}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            DatasetSummary(samples=25, fingerprint=None),
            "rank 0 has 24 samples, rank 2 25 samples: .*sharded_by_host=True",
        ),
        (DatasetSummary(samples=24, fingerprint="g"), r"rank 2 24 samples \(fingerprint g\)"),
    ],
)
def test_ranks_with_other_data_are_refused(make: Make, other: DatasetSummary, said: str) -> None:
    mine = DatasetSummary(samples=24, fingerprint=None)
    with pytest.raises(ValueError, match=said):
        make(0, [mine, mine, other, other])


def test_hosts_with_parts_of_their_own_take_equal_steps(make: Make) -> None:
    summaries = [DatasetSummary(samples=samples, fingerprint=str(samples)) for samples in (24, 24, 17, 17)]
    orders = [make(rank, summaries, sharded_by_host=True) for rank in range(4)]
    assert all(isinstance(order, HostShardedSampler) for order in orders)
    assert {order.steps_per_epoch for order in orders} == {4}
    seen = [[sample for batch in order for sample in batch] for order in orders]
    assert len(set(seen[0] + seen[1])) == len(set(seen[2] + seen[3])) == 16
    assert max(seen[2] + seen[3]) < 17
    assert orders[0].state_dict() == orders[3].state_dict()


def test_ranks_of_one_host_with_other_parts_are_refused(make: Make) -> None:
    summaries = [DatasetSummary(samples=samples, fingerprint=None) for samples in (24, 23, 17, 17)]
    with pytest.raises(ValueError, match=r"rank 0 has 24 samples, rank 1 23 samples: .*one host"):
        make(0, summaries, sharded_by_host=True)


def test_a_fingerprint_on_some_hosts_only_is_refused(make: Make) -> None:
    summaries = [DatasetSummary(samples=16, fingerprint=given) for given in ("f", "f", None, None)]
    with pytest.raises(ValueError, match="1 of 2 hosts gave a fingerprint"):
        make(0, summaries, sharded_by_host=True)
