"""What DCP saved is read bit for bit, by one process, and nothing in it is run."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import resource
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from smddp.checkpoint.convert import dcp as dcp_reader
from smddp.checkpoint.convert.dcp import read_dcp
from smddp.errors import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

# Each of two processes has a half of every weight, as under FSDP.
SHARDED = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
mesh = init_device_mesh("cpu", (2,))
rows, columns = torch.arange(35.0).view(5, 7), torch.arange(12).view(3, 4)
state = {"model": {"rows": distribute_tensor(rows, mesh, [Shard(0)]),
                   "columns": distribute_tensor(columns, mesh, [Shard(1)]),
                   "replicated": distribute_tensor(rows, mesh, [Replicate()])}, "step": 7}
dcp.save(state, checkpoint_id=sys.argv[1])
dist.destroy_process_group()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "dcp"


def save(state: dict[str, Any], directory: Path) -> None:
    dcp.save(state, checkpoint_id=directory, no_dist=True)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


def test_a_model_and_its_optimizer_come_back_bit_for_bit(directory: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    state = {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict(), "step": 3, "name": "run"}
    save(state, directory)
    found = read_dcp(directory)
    assert equal({**found, "optimizer": 0}, {**state, "optimizer": 0})
    assert equal(found["optimizer"]["param_groups"], state["optimizer"]["param_groups"])
    assert equal(found["optimizer"]["state"], state["optimizer"]["state"]), "with the parameters' numbers as keys"


def test_an_optimizer_that_has_no_state_yet_comes_back(directory: Path) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters())
    save({"optimizer": optimizer.state_dict()}, directory)
    found = read_dcp(directory)
    assert found["optimizer"]["state"] == {}
    torch.optim.SGD(nn.Linear(2, 2).parameters()).load_state_dict(found["optimizer"])


def test_an_optimizers_state_by_the_names_of_parameters_stays_by_name(directory: Path) -> None:
    state = {"state": {"0": {"step": torch.ones(())}}, "param_groups": [{"params": ["0"]}]}
    save({"optimizer": state}, directory)
    assert list(read_dcp(directory)["optimizer"]["state"]) == ["0"]


def test_flat_and_nested_states_come_back(directory: Path) -> None:
    state = {
        "weight": torch.randn(2, 2),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(1.5),
        "list": [torch.ones(1), {"deep": [torch.zeros(2), 4]}],
        "plain": [1, 2],
        "tuple": (0.9, 0.999),
    }
    save(state, directory)
    assert equal(read_dcp(directory), state)


def test_only_what_is_wanted_is_read(directory: Path) -> None:
    save({"model": {"a": torch.ones(2)}, "optimizer": {"b": torch.ones(2)}, "flat": torch.ones(1)}, directory)
    assert list(read_dcp(directory, lambda name: name == "model")) == ["model", "flat"]


@pytest.mark.slow
def test_weights_in_pieces_of_two_ranks_are_put_together(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "save.py").write_text(SHARDED)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*torchrun, tmp_path / "save.py", directory], check=True, timeout=100, env=environment)
    assert len(list(directory.glob("*.distcp"))) == 2
    rows = torch.arange(35.0).view(5, 7)
    expected = {"rows": rows, "columns": torch.arange(12).view(3, 4), "replicated": rows}
    found = read_dcp(directory)
    assert equal({name: found["model"][name] for name in expected}, expected)
    assert found["step"] == 7


class Bomb:
    """Makes a file when it is loaded as a pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_metadata_that_would_run_code_is_refused(directory: Path, tmp_path: Path) -> None:
    save({"a": torch.ones(1)}, directory)
    (directory / ".metadata").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(CheckpointError, match=r"names posix\.mkdir, which could run code"):
        read_dcp(directory)
    assert not (tmp_path / "ran").exists()


def test_a_value_that_would_run_code_is_refused(directory: Path, tmp_path: Path) -> None:
    save({"a": Bomb(tmp_path / "ran")}, directory)
    with pytest.raises(CheckpointError, match="run code"):
        read_dcp(directory)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("module", "name"), dcp_reader._KNOWN, ids=str)
def test_metadata_cannot_change_the_classes_that_it_names(directory: Path, module: str, name: str) -> None:
    directory.mkdir()
    # Sets an attribute of the class itself: the opcodes GLOBAL, NONE, EMPTY_DICT with an entry, TUPLE2 and BUILD.
    (directory / ".metadata").write_bytes(f"c{module}\n{name}\nN}}Vchanged\nNs\x86b.".encode("latin-1"))
    with pytest.raises(CheckpointError):
        read_dcp(directory)
    assert not hasattr(dcp_reader._KNOWN[module, name], "changed")


def _metadata(directory: Path) -> Any:
    return pickle.loads((directory / ".metadata").read_bytes())


@pytest.mark.parametrize("name", ["../secret.pt", "/etc/passwd", "sub/file", ".."])
def test_a_piece_outside_of_the_directory_is_refused(directory: Path, name: str) -> None:
    save({"a": torch.ones(1)}, directory)
    torch.save(torch.zeros(1), directory.parent / "secret.pt")
    metadata = _metadata(directory)
    for piece in metadata.storage_data.values():
        piece.relative_path = name
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="is not a file in the directory"):
        read_dcp(directory)


def test_a_tensor_with_a_hole_is_refused(directory: Path) -> None:
    save({"a": torch.ones(4)}, directory)
    metadata = _metadata(directory)
    metadata.state_dict_metadata["a"].size = torch.Size([8])
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="do not make up a tensor"):
        read_dcp(directory)


def test_pieces_that_are_not_what_the_metadata_says_are_refused(directory: Path) -> None:
    save({"a": torch.ones(4)}, directory)
    metadata = _metadata(directory)
    metadata.state_dict_metadata["a"].properties.dtype = torch.float64
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="is not the tensor"):
        read_dcp(directory)


@pytest.mark.parametrize("cut", [0, 100, 400])
def test_truncated_files_are_refused(directory: Path, cut: int) -> None:
    save({"a": torch.ones(400), "b": 3}, directory)
    for name in (".metadata", "__0_0.distcp"):
        content = (directory / name).read_bytes()
        (directory / name).write_bytes(content[:cut])
        with pytest.raises(CheckpointError):
            read_dcp(directory)
        (directory / name).write_bytes(content)


def test_random_bytes_as_metadata_are_refused(directory: Path) -> None:
    directory.mkdir()
    generator = torch.Generator().manual_seed(0)
    for size in range(1, 200):
        content = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        (directory / ".metadata").write_bytes(content.numpy().tobytes())
        with pytest.raises(CheckpointError):
            read_dcp(directory)


def test_metadata_of_another_thing_is_refused(directory: Path) -> None:
    directory.mkdir()
    for thing in (3, "text", None, OrderedDict(a=1), torch.Size([1])):
        (directory / ".metadata").write_bytes(pickle.dumps(thing))
        with pytest.raises(CheckpointError):
            read_dcp(directory)


@pytest.mark.parametrize(("second", "told"), [(1, "overlap"), (3, "is not within"), (-2, "is not within")])
def test_pieces_that_overlap_or_lie_outside_are_refused(directory: Path, second: int, told: str) -> None:
    """They have as many elements as the tensor, and would leave some of it as the memory was."""
    save({"a": torch.ones(2), "b": torch.ones(2)}, directory)
    metadata = _metadata(directory)
    described, chunk = metadata.state_dict_metadata["a"], metadata.state_dict_metadata["b"].chunks[0]
    described.size = torch.Size([4])
    other = copy.deepcopy(chunk)
    object.__setattr__(other, "offsets", torch.Size([second]) if second >= 0 else (second,))
    described.chunks = [chunk, other]
    (index, piece), *_ = [(key, each) for key, each in metadata.storage_data.items() if key.fqn == "a"]
    metadata.storage_data[dataclasses.replace(index, offset=other.offsets)] = piece
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=told):
        read_dcp(directory)


def _change(directory: Path, **fields: Any) -> None:
    """Change what the metadata say of the place of each piece."""
    metadata = _metadata(directory)
    for piece in metadata.storage_data.values():
        for name, value in fields.items():
            setattr(piece, name, value)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize("fields", [{"length": 2**62}, {"length": 2**70}, {"length": -1}, {"offset": -1}], ids=str)
def test_pieces_that_are_not_within_their_files_are_refused(directory: Path, fields: dict[str, int]) -> None:
    save({"a": torch.ones(4)}, directory)
    _change(directory, **fields)
    with pytest.raises(CheckpointError, match="a piece of 'a' is not within"):
        read_dcp(directory)


def test_a_tensor_larger_than_its_pieces_takes_no_memory(directory: Path) -> None:
    """Two pieces of nothing but one number each, expanded, would be 2 TB."""
    save({"a": torch.ones(2), "b": torch.ones(2)}, directory)
    metadata = _metadata(directory)
    described, chunk = metadata.state_dict_metadata["a"], metadata.state_dict_metadata["b"].chunks[0]
    described.size = torch.Size([2**40])
    described.chunks = [copy.deepcopy(chunk), copy.deepcopy(chunk)]
    for each, start in zip(described.chunks, (0, 2**39), strict=True):
        object.__setattr__(each, "offsets", torch.Size([start]))
        object.__setattr__(each, "sizes", torch.Size([2**39]))
    (index, piece), *_ = [(key, each) for key, each in metadata.storage_data.items() if key.fqn == "a"]
    metadata.storage_data[dataclasses.replace(index, offset=torch.Size([2**39]))] = piece
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="a piece of 'a' needs 2199023255552 bytes, and has"):
        read_dcp(directory)


def test_pieces_that_share_their_bytes_are_refused(directory: Path) -> None:
    save({name: torch.ones(4) for name in "abcd"}, directory)
    _change(directory, offset=0, length=(directory / "__0_0.distcp").stat().st_size)
    with pytest.raises(CheckpointError, match=r"more bytes than|not a file that torch.save wrote|is damaged"):
        read_dcp(directory)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02N" + b"r\xff\xff\xff\x7f" + b".",  # remembers one value under a number that needs 32 GB of memory
        b"\x80\x02" + b"\x8b\xff\xff\xff\x7f" + b".",  # a number of 2 GB that is not there
        b"\x80\x04" + b"\x8e" + (2**62).to_bytes(8, "little") + b".",  # bytes that are not there
    ],
    ids=["memo", "number", "bytes"],
)
def test_a_pickle_that_announces_more_than_it_has_takes_no_memory(directory: Path, content: bytes) -> None:
    directory.mkdir()
    (directory / ".metadata").write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError):
        read_dcp(directory)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 100_000, "kB"


def test_a_shape_of_absurd_numbers_is_refused(directory: Path) -> None:
    save({"a": torch.ones(4)}, directory)
    metadata = _metadata(directory)
    metadata.state_dict_metadata["a"].size = (1 << 10**6,) * 1000
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError):
        read_dcp(directory)
