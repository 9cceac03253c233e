from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

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


META = torch.device("meta")


@dataclass
class Sample:
    image: Tensor
    name: str = "x"
    length: int = field(init=False)

    def __post_init__(self) -> None:
        self.length = len(self.image)  # a sample that is made anew would have another one
        self.image = self.image[:1]


@dataclass(frozen=True, slots=True)
class Fixed:
    image: Tensor
    more: list[Tensor]


class Encoding(UserDict[str, Any]):
    """What transformers' tokenizers return: a UserDict with more to it than its items."""

    def __init__(self, data: dict[str, Any], lengths: list[int]) -> None:
        super().__init__(data)
        self.lengths = lengths


class Graph:
    """Moves itself, as PyTorch Geometric's Data does."""

    def __init__(self, nodes: Tensor) -> None:
        self.nodes = nodes
        self.asked: list[bool] = []

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "Graph":
        graph = Graph(self.nodes.to(device))
        graph.asked = [non_blocking]
        return graph


class Plain:
    """Moves itself, and knows of nothing but the device."""

    def __init__(self, nodes: Tensor) -> None:
        self.nodes = nodes

    def to(self, device: torch.device) -> "Plain":
        return Plain(self.nodes.to(device))


class InPlace(Plain):
    def to(self, device: torch.device) -> None:  # type: ignore[override]
        self.nodes = self.nodes.to(device)


class Listing(list[Tensor]):
    source = "a file"


@pytest.mark.parametrize(
    ("batch", "tensors"),
    [
        (Encoding({"ids": torch.ones(2)}, [2]), lambda moved: [moved["ids"]]),
        (OrderedDict(ids=torch.ones(2)), lambda moved: [moved["ids"]]),
        (defaultdict(list, ids=[torch.ones(2)]), lambda moved: moved["ids"]),
        (MappingProxyType({"ids": torch.ones(2)}), lambda moved: [moved["ids"]]),
        (Sample(torch.ones(3)), lambda moved: [moved.image]),
        (Fixed(torch.ones(2), [torch.ones(1)]), lambda moved: [moved.image, *moved.more]),
        (Graph(torch.ones(2)), lambda moved: [moved.nodes]),
        (Plain(torch.ones(2)), lambda moved: [moved.nodes]),
        (InPlace(torch.ones(2)), lambda moved: [moved.nodes]),
        (pack_sequence([torch.ones(3), torch.ones(2)]), lambda moved: [moved.data]),
        (Listing([torch.ones(2)]), list),
        (torch.ones(2, 2).max(dim=0), list),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_batch_of_any_type_is_moved_and_keeps_its_type(batch: Any, tensors: Callable[[Any], list[Tensor]]) -> None:
    (moved,) = move([batch], META)

    assert type(moved) is type(batch)
    assert [tensor.device for tensor in tensors(moved)] == [META] * len(tensors(batch))
    if not isinstance(batch, InPlace):
        assert all(tensor.device != META for tensor in tensors(batch))


def test_a_moved_batch_keeps_what_else_belongs_to_it() -> None:
    assert move(Encoding({"ids": torch.ones(2)}, [2]), META).lengths == [2]
    sample = move(Sample(torch.ones(3)), META)
    assert (sample.name, sample.length) == ("x", 3)
    assert move(defaultdict(list, ids=torch.ones(1)), META)["none"] == []
    packed = move(pack_sequence([torch.ones(3), torch.ones(2)]), META)
    assert isinstance(packed, PackedSequence)
    assert packed.batch_sizes.device == torch.device("cpu")  # where PyTorch wants it


def test_a_batch_that_moves_itself_does_not_wait_for_the_gpu_if_it_need_not() -> None:
    assert move(Graph(torch.ones(2)), META).asked == [True]


def test_what_no_rule_knows_is_passed_through() -> None:
    class Unknown:
        image = torch.ones(1)

    for value in (Unknown(), Unknown, Sample, "text", None, 3):
        assert move(value, META) is value
