from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from smddp.cluster import Cluster
from smddp.distributed.device import move, rank_device
from smddp.errors import DistributedError


class Batch(NamedTuple):
    images: Tensor
    names: list[str]


def test_a_rank_has_the_gpu_of_its_local_rank(
    monkeypatch: pytest.MonkeyPatch, make_cluster: Callable[[int, int], Cluster]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    assert rank_device(make_cluster(1, 4)) == torch.device("cuda", 1)
    with pytest.raises(DistributedError, match="local rank 2 has no GPU: host localhost runs 4 ranks and has 2"):
        rank_device(make_cluster(2, 4))


def test_without_a_gpu_it_is_the_cpu(
    monkeypatch: pytest.MonkeyPatch, make_cluster: Callable[[int, int], Cluster]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert rank_device(make_cluster(1, 4)) == torch.device("cpu")


def test_every_tensor_of_a_batch_is_moved_and_the_rest_is_kept() -> None:
    meta = torch.device("meta")
    batch = {"a": Batch(torch.ones(2), ["x", "y"]), "b": [torch.ones(1), (torch.ones(3), 7)]}

    moved = move(batch, meta)

    assert isinstance(moved["a"], Batch)
    assert moved["a"].images.device == meta
    assert moved["a"].names == ["x", "y"]
    assert moved["b"][0].device == moved["b"][1][0].device == meta
    assert moved["b"][1][1] == 7
