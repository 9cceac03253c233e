"""Tensors whose values are divided among ranks: each rank saves and loads its own pieces, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

import smddp
from smddp.checkpoint import Checkpointer, list_checkpoints
from smddp.checkpoint.format.manifest import Manifest
from smddp.checkpoint.format.shards import Box, check_boxes, why_unsupported
from smddp.checkpoint.format.state_tree import flatten_shards, sharded_entries
from smddp.checkpoint.format.tensors import allocate
from smddp.checkpoint.restore.reader import load_parts, read_checkpoint
from smddp.checkpoint.stores import Store
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.opening import open_store
from smddp.errors import CheckpointError
from tests.smddp.checkpoint.by_hand import write_checkpoint

CHAIN = """
import logging, os, random
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from smddp.checkpoint import Checkpointer, Retention, list_checkpoints
from smddp.checkpoint.format.shards import Box, division_of
from smddp.checkpoint.restore.reader import load_parts, read_checkpoint
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.opening import open_store

logging.basicConfig(level=logging.WARNING)
dist.init_process_group("gloo")
RANK, RANKS = dist.get_rank(), dist.get_world_size()
SHAPES = {"vector": (7,), "matrix": (5, 6), "cube": (3, 4, 2), "row": (1, 9), "empty": (0, 3), "number": ()}
MESHES = [DeviceMesh("cpu", list(range(count))) for count in range(1, RANKS + 1)]
MESHES += [DeviceMesh("cpu", [[0, 1], [2, 3]]), DeviceMesh("cpu", [[3], [1]])]
chance = random.Random(SEED)

def expected(step):
    draw = torch.Generator().manual_seed(step)
    return {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}

def layout(shape):
    if chance.random() < 0.2:
        return None
    mesh = chance.choice(MESHES)
    kinds = [Replicate(), *(Shard(number) for number in range(len(shape)))]
    return mesh, [chance.choice(kinds) for _ in range(mesh.ndim)]

def divided(values, to):
    if to is None:
        return values.clone()
    mesh, placements = to
    # Without communication, and also on ranks outside of the mesh.
    whole = {"shape": values.shape, "stride": values.stride()}
    empty = DTensor.from_local(torch.empty((0,) * values.ndim), mesh, placements, **whole)
    local = values[division_of(empty).own.within(Box((0,) * values.ndim, values.shape))].contiguous()
    return DTensor.from_local(local, mesh, placements, **whole)

def matches(tensor, values):
    if isinstance(tensor, DTensor):
        if tensor.device_mesh.get_coordinate() is None:
            return True  # this rank has no values
        values = values[division_of(tensor).own.within(Box((0,) * values.ndim, values.shape))]
        tensor = tensor.to_local()
    return torch.equal(tensor.detach(), values)

class Model(nn.Module):
    def __init__(self, values, layouts):
        super().__init__()
        for name, each in values.items():
            self.register_parameter(name, nn.Parameter(divided(each, layouts[name])))

for step in range(1, CHAINS + 1):
    DirectoryStore.read_size = chance.choice([8, 20, 2**21])  # a piece is read in several blocks, or at once
    layouts = {name: layout(shape) for name, shape in SHAPES.items()}
    model = Model({name: torch.zeros(shape) for name, shape in SHAPES.items()}, layouts)
    optimizer = torch.optim.AdamW(model.parameters())
    with Checkpointer("run", {"model": model, "optimizer": optimizer}, keep=Retention(last=2)) as checkpointer:
        loaded = checkpointer.load()
        assert (loaded and loaded.step) == (step - 1 or None)
        if loaded:
            before = expected(step - 1)
            for name, weight in model.named_parameters():
                assert matches(weight, before[name]), (step, name, layouts[name])
                moments = optimizer.state[weight]
                assert matches(moments["exp_avg"], 2 * before[name]), (step, name)
                assert float(moments["step"]) == step - 1
        now = expected(step)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(divided(now[name], layouts[name]))
                moments = {"step": torch.tensor(float(step))}
                moments |= {key: divided(2 * now[name], layouts[name]) for key in ("exp_avg", "exp_avg_sq")}
                optimizer.state[weight] = moments
        checkpointer.save(step)
        checkpointer.wait()
    if RANK == 0 and step % 10 == 0:
        whole = read_checkpoint(open_store("run"), step).unflatten("model")
        assert all(torch.equal(whole[name], values) for name, values in now.items())
        assert all(info.valid for info in list_checkpoints("run"))
print("all equal")
"""


def run_in(directory: Path, program: str) -> str:
    return f"import os\nos.chdir({str(directory)!r})\n{program}"


@pytest.mark.slow
def test_what_is_loaded_is_what_was_saved_in_any_layout_on_any_ranks(
    run_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    program = run_in(tmp_path, CHAIN.replace("SEED", "1").replace("CHAINS", "40"))
    ended = run_ranks(program, [{}] * 4)
    assert [(each.code, each.printed) for each in ended] == [(0, "all equal\n")] * 4, ended


TRAINING = """
import logging, os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from smddp.checkpoint import Checkpointer

logging.basicConfig(level=logging.WARNING, format="%(message)s")
RANKS, KIND = int(os.environ["WORLD_SIZE"]), os.environ["KIND"]
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.LayerNorm(10), nn.Linear(10, 3))
data_rank, data_ranks = dist.get_rank(), RANKS
if KIND == "ddp":
    wrapped = nn.parallel.DistributedDataParallel(model)
elif KIND in ("tensor", "both"):
    mesh = init_device_mesh("cpu", (RANKS // 2, 2), mesh_dim_names=("data", "tensor"))
    data_rank, data_ranks = mesh["data"].get_local_rank(), RANKS // 2
    plan = {"0": ColwiseParallel(output_layouts=Replicate()), "3": RowwiseParallel(input_layouts=Replicate())}
    wrapped = parallelize_module(model, mesh["tensor"], plan)
    if KIND == "both":
        fully_shard(model[0], mesh=mesh["data"])
        wrapped = fully_shard(model, mesh=mesh["data"])
else:
    mesh = init_device_mesh("cpu", (RANKS,))
    if KIND == "hsdp":
        mesh = init_device_mesh("cpu", (2, RANKS // 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model[0], mesh=mesh)
    wrapped = fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
with Checkpointer("run", {"model": model, "optimizer": optimizer}) as checkpointer:
    resumed = checkpointer.load()
    for step in range(resumed.step if resumed else 0, int(os.environ["STEPS"])):
        batch = torch.randn(24, 5, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = wrapped(batch.chunk(data_ranks)[data_rank]).square().mean()
        loss.backward()
        optimizer.step()
        loss = loss.detach() / RANKS
        dist.all_reduce(loss)
        print(step, f"{loss.item():.7f}")
        checkpointer.save(step + 1)
"""


def losses_of_one_process() -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.LayerNorm(10), nn.Linear(10, 3))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.05), {}
    for step in range(8):
        optimizer.zero_grad()
        loss = model(torch.randn(24, 5, generator=torch.Generator().manual_seed(step))).square().mean()
        loss.backward()
        optimizer.step()
        losses[str(step)] = loss.item()
    return losses


RUNS = [("fsdp", 3, 2), ("both", 4, 4), ("hsdp", 4, 5), ("tensor", 2, 6), ("ddp", 2, 7), ("fsdp", 2, 8)]
"""How the model is divided, among how many ranks, and up to which step."""


@pytest.mark.slow
def test_a_run_continues_on_other_ranks_sharded_in_another_way_or_not_at_all(
    run_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    losses: dict[str, float] = {}
    for kind, ranks, steps in RUNS:
        environ = {"KIND": kind, "STEPS": str(steps)}
        ended = run_ranks(run_in(tmp_path, TRAINING), [environ] * ranks)
        assert [each.code for each in ended] == [0] * ranks, ended
        losses |= {step: float(loss) for step, loss in map(str.split, ended[0].printed.splitlines())}
    assert losses == pytest.approx(losses_of_one_process(), abs=1e-5)
    # A piece of the newest checkpoint is damaged, which one rank alone reads: all ranks take the one before.
    newest = max((tmp_path / "run").glob("step-*/*/optimizer-00002-of-00002.safetensors"))
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    ended = run_ranks(run_in(tmp_path, TRAINING), [{"KIND": "fsdp", "STEPS": "8"}] * 2)
    assert [each.code for each in ended] == [0, 0], ended
    assert [each.printed.split()[0] for each in ended] == ["7", "7"]
    assert "optimizer-00002-of-00002.safetensors was changed" in ended[0].logged


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ([4], [Box((0,), (3,))]),
        ([4], [Box((0,), (3,)), Box((3,), (2,))]),
        ([4], [Box((0,), (4,)), Box((6,), (2,))]),
        ([4], [Box((0,), (3,)), Box((2,), (2,))]),
        ([4], [Box((0,), (4,)), Box((0,), (4,))]),
        ([4], [Box((0,), (4,)), Box((4,), (0,))]),
        ([2, 2], [Box((0, 0), (1, 2)), Box((1, 0), (1, 1))]),
        ([2, 2], [Box((0, 0), (1, 1)), Box((0, 1), (1, 1)), Box((1, 0), (1, 2))]),
        ([0, 2], [Box((0, 0), (0, 2))]),
        ([4], []),
    ],
)
def test_pieces_that_leave_a_gap_or_overlap_are_refused(shape: list[int], boxes: list[Box]) -> None:
    with pytest.raises(CheckpointError, match=r"the pieces of 'weight' do not fill its shape"):
        check_boxes("weight", shape, boxes)


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ([4], [Box((2,), (2,)), Box((0,), (2,))]),
        ([3, 2], [Box((0, 0), (2, 2)), Box((2, 0), (1, 2))]),
        ([2, 2], [Box((row, column), (1, 1)) for row in (0, 1) for column in (0, 1)]),
        ([], [Box((), ())]),
        ([0, 2], []),
    ],
)
def test_pieces_that_form_a_grid_are_taken(shape: list[int], boxes: list[Box]) -> None:
    check_boxes("weight", shape, boxes)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "F99"},
        {"shape": [4.0, 2]},
        {"shape": [-4, 2]},
        {"shape": [2**62, 0]},
        {"pieces": [["a", [0], [4, 2]]]},
        {"pieces": [["a", [0, 0], [2, 2]], ["a", [2, 0], [2, 2]]]},
        {"pieces": [[["a"], [0, 0], [4, 2]]]},
        {"pieces": None},
        {"name": 3},
    ],
)
def test_a_malformed_description_of_pieces_is_refused(change: dict[str, Any]) -> None:
    node = {"$": "sharded", "name": "w", "dtype": "F32", "shape": [4, 2], "pieces": [["w@0", [0, 0], [4, 2]]]}
    (entry,) = sharded_entries({"layers": [{"w": node}]})
    assert (entry.shape, dict(entry.pieces)) == ((4, 2), {"w@0": Box((0, 0), (4, 2))})
    with pytest.raises(CheckpointError, match="the pieces of"):
        list(sharded_entries({"w": node | change}))


def write_by_hand(
    store: Store, skeleton: Any, tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.smddp.checkpoint.by_hand.flatten", lambda value, path: (skeleton, tensors))
    write_checkpoint(store, 1, {"model": None}, writers=2)


HALVES = {"$": "sharded", "name": "w", "dtype": "F32", "shape": [4], "pieces": [["a", [0], [2]], ["b", [2], [2]]]}


def test_a_state_in_pieces_is_read_as_the_same_whole(tmp_path: Path) -> None:
    store, state = (
        open_store(tmp_path),
        {"model": {"w": torch.randn(5, 3), "n": torch.tensor(2), "e": torch.empty(0, 2)}},
    )
    write_checkpoint(store, 1, state, writers=2, pieces=True)
    for name, value in read_checkpoint(store, 1).unflatten("model").items():
        assert torch.equal(value, state["model"][name]), name


@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    start=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    most=st.integers(1, 30),
)
def test_a_box_is_divided_in_the_order_of_its_values(shape: list[int], start: list[int], most: int) -> None:
    box = Box(tuple(start[: len(shape)]), tuple(shape))
    values = torch.arange(box.size).view(shape)
    boxes = list(box.in_order(most))
    assert torch.cat([values[each.within(box)].reshape(-1) for each in boxes]).tolist() == list(range(box.size))
    assert max(each.size for each in boxes) <= most
    assert len(boxes) <= max(1, 2 * box.size / most)


def damage_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("read_size", [8, 100, 2**21])
def test_a_piece_passes_through_a_block_of_memory(
    read_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectoryStore, "read_size", read_size)
    allocated: list[int] = []
    monkeypatch.setattr(
        "smddp.checkpoint.restore.verified.allocate", lambda size: (allocated.append(size), allocate(size))[1]
    )
    store, state = open_store(tmp_path), {"model": {"v": torch.randn(7), "w": torch.randn(50, 3, dtype=torch.double)}}
    write_checkpoint(store, 1, state, writers=2, pieces=True)
    for name, value in read_checkpoint(store, 1).unflatten("model").items():
        assert torch.equal(value, state["model"][name]), name
    assert set(allocated) == {read_size}, "no memory is taken for a piece"
    assert list_checkpoints(tmp_path)[0].valid
    (file,) = tmp_path.rglob("model-00002-of-00002.safetensors")
    damage_last_byte(file)
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002.safetensors was changed: its bytes of 'v@1' do"):
        read_checkpoint(store, 1)
    assert not list_checkpoints(tmp_path)[0].valid


def test_small_whole_tensors_are_read_together_with_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read_into = DirectoryStore.read_into

    def read(self: DirectoryStore, step: int, directory: str, name: str, offset: int, memory: memoryview) -> None:
        reads.append(name)
        read_into(self, step, directory, name, offset, memory)

    monkeypatch.setattr(DirectoryStore, "read_into", read)
    whole = {f"v{number}": torch.randn(()) for number in range(9)}
    state = {"model": {"u": torch.randn(2), **whole, "w": torch.randn(50, 3)}}
    store = open_store(tmp_path)
    write_checkpoint(store, 1, state, pieces=True)
    loaded = read_checkpoint(store, 1).unflatten("model")
    for name, value in state["model"].items():
        assert torch.equal(loaded[name], value), name
        assert loaded[name].untyped_storage().nbytes() == value.nbytes
    assert reads.count("model.safetensors") == 2, "the header and the values"


def test_pieces_in_two_files_are_one_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    write_by_hand(store, {"w": HALVES}, {"a": torch.tensor([1.0, 2]), "b": torch.tensor([3.0, 4])}, monkeypatch)
    assert read_checkpoint(store, 1).unflatten("model")["w"].tolist() == [1, 2, 3, 4]
    assert [info.status for info in list_checkpoints(tmp_path)] == ["valid"]


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({}, r"'b', a piece of 'w', is missing or another tensor"),
        ({"b": torch.zeros(3)}, r"'b', a piece of 'w', is missing or another tensor"),
        ({"b": torch.zeros(2, dtype=torch.float64)}, r"'b', a piece of 'w', is missing or another tensor"),
    ],
)
def test_a_piece_that_is_missing_or_another_one_is_refused_before_memory_is_taken(
    second: dict[str, torch.Tensor], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smddp.checkpoint.restore.reader.empty_tensor", None)
    store = open_store(tmp_path)
    write_by_hand(store, {"w": HALVES}, {"a": torch.zeros(2), **second}, monkeypatch)
    with pytest.raises(CheckpointError, match=told):
        read_checkpoint(store, 1)


@pytest.fixture
def process_group_of_one() -> Iterator[None]:
    smddp.join()
    yield
    smddp.leave()


OWN_MESHES = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from smddp.checkpoint import Checkpointer

dist.init_process_group("gloo")
model = nn.Linear(4, 4)
meshes = [DeviceMesh("cpu", [rank]) for rank in range(dist.get_world_size())]
fully_shard(model, mesh=meshes[dist.get_rank()])
try:
    Checkpointer("run", {"model": model}, share="all").open()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_pieces_on_meshes_that_know_nothing_of_each_other_are_refused(
    run_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    ended = run_ranks(run_in(tmp_path, OWN_MESHES), [{}] * 2)
    told = "the ranks have the pieces of the state on different meshes: make one mesh of all ranks"
    assert all(each.code == 0 and told in each.printed for each in ended), ended


@dataclass
class _StridedShard:
    dim: int
    split_factor: int


@pytest.mark.parametrize(
    ("placements", "sizes", "told"),
    [
        ([_StridedShard(0, 2), Shard(0)], [2, 2], ""),
        ([Shard(1), _StridedShard(0, 6), Shard(0), Replicate(), Shard(0)], [9, 2, 3, 5, 2], ""),
        ([_StridedShard(0, 2), Shard(0)], [2, 4], "split_factor=2"),
        ([_StridedShard(0, 2), Shard(1)], [2, 2], "split_factor=2"),
        ([_StridedShard(0, 4), _StridedShard(0, 2), Shard(0)], [2, 2, 2], "split_factor=4"),
    ],
)
def test_only_what_fully_shard_makes_of_tensor_parallelism_is_known(
    placements: list[Any], sizes: list[int], told: str
) -> None:
    why = why_unsupported(placements, sizes)
    assert told in why if why else not told


class OneRank(nn.Module):
    """A module with a weight on a mesh of one rank."""

    def __init__(self, *placements: Placement) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (1,) * len(placements))
        self.weight = nn.Parameter(DTensor.from_local(torch.ones(2), mesh, placements))


@pytest.mark.usefixtures("process_group_of_one")
def test_what_has_no_pieces_is_refused_by_name(tmp_path: Path) -> None:
    flat = FullyShardedDataParallel(nn.Linear(2, 1), device_id=torch.device("cpu"))
    with pytest.raises(ValueError, match="it is a FullyShardedDataParallel, which hides the layout of its weights"):
        Checkpointer(tmp_path, {"model": flat})
    partial = OneRank(Partial())
    with pytest.raises(ValueError, match=r"'model' can't be saved: weight is a DTensor with the placement Partial"):
        Checkpointer(tmp_path, {"model": partial})
    optimizer = torch.optim.SGD(partial.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"'optimizer' can't be saved: parameter 0 is a DTensor with the placement"):
        Checkpointer(tmp_path, {"optimizer": optimizer})
    with pytest.raises(CheckpointError, match=r"model.weight is a DTensor with the placement Partial"):
        flatten_shards(partial.state_dict(), path="model", rank=0)


@pytest.mark.usefixtures("process_group_of_one")
def test_tensors_and_pieces_have_names_of_their_own(tmp_path: Path) -> None:
    whole = torch.arange(2.0)
    state = {"a": {"b": OneRank(Shard(0)).weight}, "a.b": whole, "a.b@0": whole + 1}
    skeleton, tensors, owners = flatten_shards(state, path="model", rank=0)
    assert sorted(tensors) == ["a.b#2", "a.b@0", "a.b@0#2"]
    assert owners == {"a.b@0": 0}
    assert [entry.pieces for entry in sharded_entries(skeleton)] == [{"a.b@0": Box((0,), (2,))}]


@pytest.mark.parametrize(
    "skeleton", [{"$": "tensor"}, [1, 2], {"$": "dict", "items": [1]}, {"w": {**HALVES, "name": "a"}, "v": HALVES}]
)
def test_a_malformed_state_is_refused_for_a_sharded_model_too(
    skeleton: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    write_by_hand(store, skeleton, {"a": torch.zeros(2), "b": torch.zeros(2)}, monkeypatch)
    manifest = Manifest.from_json(store.read_manifest(1) or b"")
    with pytest.raises(CheckpointError, match=r"cannot be put together|is missing or another tensor"):
        load_parts(store, manifest, parts=None, targets={"model": lambda state: {state["w"].name: torch.zeros(4)}})


ALONE = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from smddp.checkpoint import Checkpointer

class Part:
    def __init__(self, size):
        mesh = init_device_mesh("cpu", (2,))
        local = torch.ones(size if dist.get_rank() == 0 or size > 1 else 0)
        self.tensor = DTensor.from_local(local, mesh, [Shard(0)], shape=(size if size == 1 else 2 * size,), stride=(1,))

    def state_dict(self):
        return {"best": self.tensor}

    def load_state_dict(self, state):
        pass

dist.init_process_group("gloo")
for size in (1, 4):
    try:
        with Checkpointer(f"own-{dist.get_rank()}", {"part": Part(size)}, share="alone") as checkpointer:
            checkpointer.save(1)
    except Exception as error:
        print(error)
    else:
        print("saved")
"""


@pytest.mark.slow
def test_a_process_that_saves_alone_saves_no_piece_as_another_ranks(
    run_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    ended = run_ranks(run_in(tmp_path, ALONE))
    assert [each.code for each in ended] == [0, 0], ended
    missing, other = (
        "rank 1 has pieces of 'part' and may not write",
        "part.best is divided among ranks that do not save",
    )
    for each, expected in zip(ended, (["saved", missing], [other, other]), strict=True):
        printed = each.printed.splitlines()
        assert [line.startswith(text) for line, text in zip(printed, expected, strict=True)] == [True, True], ended
