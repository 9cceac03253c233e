import json
import os
import re
import sys
import types
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from smddp.cluster import Cluster
from smddp.distributed import join, leave, membership
from smddp.distributed.device import (
    choose_backend,
    gpus_per_rank,
    missing_gpus,
    move,
    rank_device,
    share_gpus,
    visible_gpus,
)
from smddp.errors import DistributedError

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
ASKS_FOR_SMDDP = {"SM_FRAMEWORK_PARAMS": json.dumps({"sagemaker_distributed_dataparallel_enabled": True})}


class Batch(NamedTuple):
    images: Tensor
    names: list[str]


MakeCluster = Callable[[int, int], Cluster]


def devices(make_cluster: MakeCluster, *visible: Sequence[str]) -> list[str]:
    return [str(rank_device(make_cluster(rank, len(visible)), visible)) for rank in range(len(visible))]


def test_a_rank_has_the_gpu_of_its_local_rank_where_all_see_the_same(make_cluster: MakeCluster) -> None:
    assert devices(make_cluster, ["a", "b"], ["a", "b"]) == ["cuda:0", "cuda:1"]
    assert devices(make_cluster, ["a", "b", "c"]) == ["cuda:0"]
    with pytest.raises(DistributedError, match="local rank 2 lacks a GPU: host localhost runs 3 ranks and has 2 GPUs"):
        devices(make_cluster, ["a", "b"], ["a", "b"], ["a", "b"])


def test_a_host_with_fewer_gpus_than_a_rank_asks_for_is_told_to_ask_for_fewer(make_cluster: MakeCluster) -> None:
    told = r"runs 1 rank of 4 GPUs \(SMDDP_GPUS_PER_RANK\) and has 2 GPUs .*; lower SMDDP_GPUS_PER_RANK, or"
    with pytest.raises(DistributedError, match=told):
        rank_device(make_cluster(0, 1), [["a", "b"]], per_rank=4)


def test_a_rank_has_the_first_gpu_where_each_sees_its_own(make_cluster: MakeCluster) -> None:
    assert devices(make_cluster, ["a"], ["b"], ["c"]) == ["cuda:0"] * 3
    assert devices(make_cluster, ["a", "b"], ["c", "d"], ["e", "f"]) == ["cuda:0"] * 3


def test_ranks_that_share_one_gpu_are_refused(make_cluster: MakeCluster) -> None:
    with pytest.raises(DistributedError, match="local rank 1 lacks a GPU: host localhost runs 2 ranks and has 1 GPU"):
        devices(make_cluster, ["a"], ["a"])
    with pytest.raises(DistributedError, match="local rank 0 a; local rank 1 a, b"):
        devices(make_cluster, ["a"], ["a", "b"])
    with pytest.raises(DistributedError, match="local rank 0 a; local rank 1 none"):
        rank_device(make_cluster(1, 2), [["a"], []])


def test_without_a_gpu_it_is_the_cpu(make_cluster: MakeCluster) -> None:
    assert devices(make_cluster, [], []) == ["cpu", "cpu"]


def test_a_gpu_is_named_by_its_uuid_and_a_part_of_one_by_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"uuid-{index}"))
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3"}) == ["uuid-0"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "MIG-7"}) == ["MIG-7"]


def test_the_ranks_of_a_host_tell_each_other_what_they_see(make_cluster: MakeCluster) -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        shared = list(pool.map(lambda rank: share_gpus(store, make_cluster(rank, 2), [f"gpu-{rank}"]), range(2)))
    assert shared == [[["gpu-0"], ["gpu-1"]]] * 2


@pytest.mark.parametrize(
    ("environ", "cuda", "told"),
    [
        ({}, None, None),
        ({"SM_NUM_GPUS": "0"}, None, None),
        ({"SM_NUM_GPUS": "8"}, None, "SM_NUM_GPUS=8, and PyTorch sees no GPU: PyTorch .* is built for the CPU alone"),
        ({"SLURM_GPUS_ON_NODE": "4"}, "12.4", "SLURM_GPUS_ON_NODE=4, .* the host's driver older"),
        ({"SM_NUM_GPUS": "1", "CUDA_VISIBLE_DEVICES": ""}, "12.4", "CUDA_VISIBLE_DEVICES='' hides them"),
    ],
)
def test_gpus_that_a_job_has_and_pytorch_does_not_see_are_told_with_the_cause(
    environ: Mapping[str, str], cuda: str | None, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", None)
    found = missing_gpus(environ)
    assert (found is None) if told is None else re.search(told, found or "")


def test_training_on_the_cpu_of_a_job_with_gpus_is_a_warning(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SM_NUM_GPUS", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    try:
        assert join(make_cluster(0, 1)).device == torch.device("cpu")
    finally:
        leave()
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert any("TRAINING RUNS ON THE CPU: SM_NUM_GPUS=1" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("backend", "world_size", "bound"),
    [("cpu:gloo,cuda:nccl", 2, True), ("gloo", 2, False), ("cpu:gloo,cuda:nccl", 1, False)],
)
def test_nccl_is_told_the_device_that_it_connects(
    backend: str, world_size: int, bound: bool, make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda _backend, **options: given.update(options))
    device = torch.device("cuda", 1)
    membership._init_group(backend, HashStore(), make_cluster(0, world_size), timedelta(seconds=1), device)
    assert given["device_id"] == (device if bound else None)


def test_a_rank_of_several_gpus_has_those_after_its_neighbours(make_cluster: MakeCluster) -> None:
    visible = [["a", "b", "c", "d"]] * 2
    assert rank_device(make_cluster(1, 2), visible, per_rank=2) == torch.device("cuda", 2)
    assert rank_device(make_cluster(1, 2), [["a", "b"], ["c", "d"]], per_rank=2) == torch.device("cuda", 0)
    with pytest.raises(DistributedError, match=r"2 ranks of 3 GPUs \(SMDDP_GPUS_PER_RANK\) and has 4.*at most 1 "):
        rank_device(make_cluster(1, 2), visible, per_rank=3)


def test_a_group_of_ranks_of_several_gpus_is_bound_to_none(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda _backend, **options: given.update(options))
    monkeypatch.setenv("SMDDP_GPUS_PER_RANK", "2")
    monkeypatch.setenv("TORCH_DIST_USE_NCCL2", "0")
    cluster, device = make_cluster(0, 2), torch.device("cuda", 0)
    membership._init_group("cpu:gloo,cuda:nccl", HashStore(), cluster, timedelta(seconds=1), device)
    assert given["device_id"] is None


@pytest.mark.parametrize(
    ("per_rank", "has_nccl2", "given", "used"),
    [("2", True, None, "0"), ("2", True, "1", "1"), ("2", False, None, None), ("1", True, None, None)],
)
def test_nccl2_which_binds_each_group_to_a_device_is_not_for_ranks_of_several_gpus(
    per_rank: str,
    has_nccl2: bool,
    given: str | None,
    used: str | None,
    make_cluster: MakeCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[str | None] = []
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda *_, **__: found.append(os.environ.get("TORCH_DIST_USE_NCCL2"))
    )
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL2", object(), raising=False)
    if not has_nccl2:
        monkeypatch.delattr(torch.distributed, "ProcessGroupNCCL2")
    monkeypatch.setenv("SMDDP_GPUS_PER_RANK", per_rank)
    monkeypatch.setenv("TORCH_DIST_USE_NCCL2", given or "")  # and put back what the code sets
    if given is None:
        monkeypatch.delenv("TORCH_DIST_USE_NCCL2")
    cluster, device = make_cluster(0, 2), torch.device("cuda", 0)
    membership._init_group("cpu:gloo,cuda:nccl", HashStore(), cluster, timedelta(seconds=1), device)
    assert found == [used]


@pytest.mark.parametrize("given", ["0", "-1", "two", "1.5"])
def test_a_number_of_gpus_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(DistributedError, match="from 1"):
        gpus_per_rank({"SMDDP_GPUS_PER_RANK": given})


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


@pytest.fixture
def install_smddp(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes it seem that Amazon's package is installed, and was built for these devices."""

    def install(*devices: str) -> None:
        name = ""
        for part in ("smdistributed", "dataparallel", "torch", "torch_smddp"):
            name = f"{name}.{part}".strip(".")
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        if devices:
            monkeypatch.setitem(torch.distributed.Backend.backend_capability, "smddp", list(devices))

    return install


def test_gloo_without_a_gpu_and_nccl_beside_gloo_with_one() -> None:
    assert choose_backend(None, CPU, {}) == "gloo"
    assert choose_backend(None, GPU, {}) == "cpu:gloo,cuda:nccl"
    assert choose_backend("gloo", GPU, {}) == "gloo"


def test_nccl_is_refused_on_the_cpu() -> None:
    with pytest.raises(DistributedError, match=r"backend='nccl' needs a CUDA device.*CPU; use backend='gloo'"):
        choose_backend("nccl", CPU, {})


def test_an_unknown_backend_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(DistributedError, match="backend='horovod' is unknown; use one of nccl, gloo, mpi, smddp"):
        choose_backend("horovod", CPU, {})


def test_mpi_is_refused_where_torch_was_built_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_mpi_available", lambda: False)
    with pytest.raises(DistributedError, match="no MPI backend"):
        choose_backend("mpi", CPU, {})
    monkeypatch.setattr(torch.distributed, "is_mpi_available", lambda: True)
    assert choose_backend("mpi", CPU, {}) == "mpi"


@pytest.mark.parametrize(("device", "instead"), [(GPU, "nccl"), (CPU, "gloo")])
def test_smddp_is_refused_where_amazons_package_is_missing(device: torch.device, instead: str) -> None:
    with pytest.raises(DistributedError, match=rf"smdistributed\.dataparallel.*not installed; use backend='{instead}'"):
        choose_backend("smddp", device, {})


@pytest.mark.parametrize("device", [GPU, CPU])
def test_smddp_is_used_where_the_job_asks_for_it_and_it_carries_the_devices_tensors(
    device: torch.device, install_smddp: Callable[..., None]
) -> None:
    install_smddp(device.type)
    assert choose_backend("smddp", device, {}) == "smddp"
    assert choose_backend(None, device, ASKS_FOR_SMDDP) == "smddp"
    assert choose_backend(None, device, {}) != "smddp"


def test_smddp_that_was_built_for_other_devices_is_refused(install_smddp: Callable[..., None]) -> None:
    install_smddp("cuda")
    with pytest.raises(DistributedError, match="is for cuda, and this rank runs on the CPU; use backend='gloo'"):
        choose_backend("smddp", CPU, {})
    assert choose_backend(None, CPU, ASKS_FOR_SMDDP) == "gloo"


def test_a_package_that_registers_no_backend_is_none(install_smddp: Callable[..., None]) -> None:
    install_smddp()
    with pytest.raises(DistributedError, match="is for no device"):
        choose_backend("smddp", GPU, {})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("import missing_part_of_smddp", "lacks something: No module named 'missing_part_of_smddp'"),
        ("raise RuntimeError('no EFA')", "can't be loaded: no EFA"),
        ("raise ImportError('libsmddp.so: cannot open')", "can't be loaded: libsmddp.so: cannot open"),
    ],
)
def test_a_broken_package_is_said_to_be_broken(
    content: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "smdistributed" / "dataparallel" / "torch"
    place.mkdir(parents=True)
    (place / "torch_smddp.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("smdistributed", "smdistributed.dataparallel", "smdistributed.dataparallel.torch"):
        monkeypatch.setitem(sys.modules, name, None)  # so that the end of the test removes what it imports
        del sys.modules[name]
    with pytest.raises(DistributedError, match=reason):
        choose_backend("smddp", GPU, {})


@pytest.mark.parametrize(("device", "instead"), [(GPU, "cpu:gloo,cuda:nccl"), (CPU, "gloo")])
def test_a_job_that_asks_for_a_missing_smddp_falls_back_loudly(
    device: torch.device, instead: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_backend(None, device, ASKS_FOR_SMDDP) == instead
    assert "THE JOB ASKS FOR SMDDP" in caplog.text
    assert f"gradients go over {instead.rpartition(':')[2]} instead" in caplog.text
