"""A sharded model is written and loaded in pieces: the same values, and no rank has all of them in its memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.smddp.conftest import Ended

PROGRAM = """
import ctypes, errno, gc, os, pathlib, threading, time
os.chdir(DIRECTORY)
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
import smddp
from smddp.checkpoint import Checkpointer
from smddp.checkpoint.convert import saved_model
from smddp.distributed import current_membership

def told(action):
    try:
        action()
    except Exception as error:
        print(f"{type(error).__name__}: {error}".splitlines()[0])
    else:
        print("no error")

class Net(nn.Module):
    def __init__(self, seed, outputs=6):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.norm, self.head = nn.Embedding(7, 6), nn.BatchNorm1d(6), nn.Linear(6, 7, bias=False)
        self.layers = nn.ModuleList(nn.Linear(6, each) for each in (6, 6, outputs))
        self.head.weight = self.embed.weight

def divided(seed, dimension=0, shape=None, **options):
    model = Net(seed, **options)
    mesh = None if shape is None else init_device_mesh("cpu", shape, mesh_dim_names=("copies", "pieces"))
    placement = lambda weight: Shard(min(dimension, weight.ndim - 1))
    fully_shard([*model.layers], mesh=mesh, shard_placement_fn=placement)
    fully_shard(model, mesh=mesh, shard_placement_fn=placement)
    return model

def replicated(seed):
    model, mesh = Net(seed), init_device_mesh("cpu", (2,))
    for layer in model.layers:
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Replicate()]))
    return model

def whole(model):
    state = model.state_dict()
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in state.items()}

def same(model, expected):
    return all(torch.equal(value, expected[name]) for name, value in whole(model).items())

def write(model, directory):
    saved_model.write_weights(model.state_dict(), pathlib.Path(directory), current_membership().ranks)
"""

VALUES = """
def main(job):
    expected = Net(1).state_dict()
    for name, size in ("one", 10**9), ("several", 200):
        saved_model.MOST_BYTES = size
        write(divided(1), name)
    with Checkpointer("run", {"model": divided(1)}) as checkpointer:
        checkpointer.save(1)
    targets = [lambda: divided(2), lambda: divided(2, 1), lambda: divided(2, shape=(2, 1)), lambda: replicated(2)]
    for source in "one", "one/model.pt", "several", "run", "run/step-000000000001":
        for make in targets:
            model = make()
            report = smddp.load_weights(model, source, freeze=True)
            assert report.complete and same(model, expected), (source, report)
            assert model.head.weight is model.embed.weight and not model.head.weight.requires_grad
    # Nothing is changed if something does not fit.
    model = divided(2, outputs=5)
    before = whole(model)
    for source in "several", "run":
        told(lambda: smddp.load_weights(model, source))
        assert same(model, before)
    smddp.load_weights(model, "run", strict=False)
    assert same(model, {**expected, **{name: before[name] for name in ("layers.2.weight", "layers.2.bias")}})
    # Weights that are tied here differ there, in the pieces of one rank alone: all ranks refuse them.
    untied = Net(1)
    untied.head.weight = nn.Parameter(untied.embed.weight.detach().clone())
    with torch.no_grad():
        untied.head.weight[-1] += 1
    fully_shard(untied)
    with Checkpointer("untied", {"model": untied}) as checkpointer:
        checkpointer.save(1)
    before = whole(model := divided(2))
    told(lambda: smddp.load_weights(model, "untied"))
    assert same(model, before)

smddp.run(main)
"""


def program(directory: Path, rest: str) -> str:
    return PROGRAM.replace("DIRECTORY", repr(str(directory))) + rest


@pytest.mark.slow
def test_each_rank_loads_its_pieces_in_any_layout(run_ranks: Callable[..., list[Ended]], tmp_path: Path) -> None:
    ended = run_ranks(program(tmp_path, VALUES))
    assert [each.code for each in ended] == [0, 0], ended
    refused = "WeightsError: nothing was loaded, for not everything fits; strict=False loads what does"
    assert [each.printed.splitlines() for each in ended] == [[refused] * 3] * 2
    one, several = tmp_path / "one", tmp_path / "several"
    assert sorted(path.name for path in one.iterdir()) == ["model.pt", "model.safetensors"]
    assert len([*several.glob("model-*-of-*.safetensors")]) > 2
    assert not (several / "model.pt").exists()
    from_one = safetensors.torch.load_file(one / "model.safetensors")
    assert "head.weight" not in from_one, "tied to embed.weight"
    from_pt: dict[str, Any] = torch.load(one / "model.pt", weights_only=True)
    assert from_pt["head.weight"].data_ptr() == from_pt["embed.weight"].data_ptr()
    assert all(torch.equal(from_pt[name], value) for name, value in from_one.items())


FAILURES = """
def main(job):
    is_main = job.cluster.is_main
    model = divided(1)
    write(model, "model")
    # Rank 0 fails in the middle of a file: the other rank still gathers with it.
    bytes_of, count = saved_model.bytes_of, []
    def full(tensor):
        count.append(tensor)
        if len(count) == 3:
            raise OSError(errno.ENOSPC, "full")
        return bytes_of(tensor)
    saved_model.bytes_of = full
    told(lambda: write(divided(2), "model"))
    saved_model.bytes_of = bytes_of
    current_membership().ranks.agree(lambda: None)
    after = divided(3)
    smddp.load_weights(after, "model")
    assert same(after, Net(1).state_dict())
    # A piece that only rank 1 reads is damaged: both ranks take the checkpoint before.
    with Checkpointer("run", {"model": model}) as checkpointer:
        checkpointer.save(1)
        smddp.load_weights(model, "model")
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(2)
        checkpointer.save(2)
    if is_main:
        files = [*pathlib.Path("run/step-000000000002").rglob("model*.safetensors")]
        for file in files:
            header = file.read_bytes()
            if b"layers.2.weight" in header and "1-of" in file.name or len(files) == 1:
                file.write_bytes(header[:-1] + bytes([header[-1] ^ 1]))
    current_membership().ranks.agree(lambda: None)
    report = smddp.load_weights(after, "run")
    print(report.source)
    assert same(after, Net(1).state_dict())
    told(lambda: smddp.load_weights(after, "run/step-000000000002"))
    # A state that only one file can hold.
    class Odd(nn.Linear):
        def get_extra_state(self):
            return {"version": 1}
        def set_extra_state(self, state):
            pass
    model = nn.Sequential(Odd(4, 4))
    fully_shard(model)
    saved_model.MOST_BYTES = 1
    write(model, "odd")

smddp.run(main)
"""


@pytest.mark.slow
def test_what_fails_on_one_rank_is_told_on_all(run_ranks: Callable[..., list[Ended]], tmp_path: Path) -> None:
    ended = run_ranks(program(tmp_path, FAILURES))
    assert [each.code for each in ended] == [0, 0], ended
    for each, error in zip(ended, ("CheckpointError: ", "PeerFailedError: rank 0 failed: "), strict=True):
        lines = each.printed.splitlines()
        assert lines[0].startswith(f"{error}could not write model/model.safetensors: No space left on device"), lines
        assert lines[1].endswith("step-000000000001")
        assert "step-000000000002" in lines[2], lines
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.pt", "model.safetensors"]
    assert [path.name for path in (tmp_path / "odd").iterdir()] == ["model.pt"]
    odd = torch.load(tmp_path / "odd" / "model.pt", weights_only=True)
    assert (odd["0.weight"].shape, odd["0._extra_state"]) == ((4, 4), {"version": 1})


MEMORY = """
WIDTH, LAYERS = 2048, 24
SIZE = WIDTH * WIDTH * LAYERS * 4

class Peak:
    \"\"\"The growth of this process's own memory. Mapped files are not its own: the system may drop their pages.\"\"\"

    def now(self):
        return int(pathlib.Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024

    def __enter__(self):
        gc.collect()
        self.before = self.peak = self.now()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.ended.wait(0.002):
            self.peak = max(self.peak, self.now())

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        self.part = (self.peak - self.before) / SIZE

def main(job):
    ctypes.CDLL(None).mallopt(-3, 2**20)  # M_MMAP_THRESHOLD: large freed blocks leave the process
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False, device="meta") for _ in range(LAYERS)))
    for layer in model:
        fully_shard(layer, shard_placement_fn=lambda weight: Shard(job.max_steps % 2))
    fully_shard(model)
    model.to_empty(device="cpu")
    for weight in model.parameters():
        nn.init.ones_(weight)
    with Checkpointer("run", {"model": model}) as checkpointer:
        checkpointer.save(1)
    for name, size in ("one", 10**9), ("several", SIZE // 3):
        saved_model.MOST_BYTES = size
        with Peak() as peak:
            write(model, name)
        print("save", name, round(peak.part, 3))
    for source in "one/model.safetensors", "one/model.pt", "several", "run":
        with Peak() as peak:
            smddp.load_weights(model, source)
        print("load", source, round(peak.part, 3))

smddp.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [0, 1])
def test_no_rank_has_the_whole_model_in_its_memory(
    run_ranks: Callable[..., list[Ended]], tmp_path: Path, dimension: int
) -> None:
    ended = run_ranks(program(tmp_path, MEMORY), [{"SMDDP_MAX_STEPS": str(2 + dimension)}] * 2)
    assert [each.code for each in ended] == [0, 0], ended
    for each in ended:
        for line in each.printed.splitlines():
            action, source, part = line.split()
            most = 0.6 if source == "run" else 0.25 if action == "save" else 0.1
            assert float(part) < most, each.printed
