"""The program in docs/reference/checkpoint-format.md reads every possible checkpoint, not only the page's own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from smddp.checkpoint.stores import open_store
from tests.smddp.checkpoint.by_hand import RUN, write_checkpoint

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "checkpoint-format.md"
FORMAT_1 = Path(__file__).parent / "fixtures" / "format-1"


@pytest.fixture
def program() -> ModuleType:
    (text,) = re.findall(r"^```python\n(# read_checkpoint\.py\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    module = ModuleType("read_checkpoint")
    exec(text, module.__dict__)
    return module


@pytest.mark.parametrize("writers", [1, 3])
def test_reads_what_several_ranks_wrote(program: ModuleType, tmp_path: Path, writers: int) -> None:
    tied = torch.nn.Linear(3, 3, bias=False)
    model = torch.nn.Sequential(tied, torch.nn.BatchNorm1d(3), tied)
    store = open_store(tmp_path)
    write_checkpoint(store, 7, {"model": model.state_dict(), "model-00": {"other": torch.ones(1)}}, writers=writers)
    manifest, files = program.read_files(Path(store.path(7)))
    assert manifest["step"] == 7
    found = program.weights(files)
    assert list(found) == list(model.state_dict())
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())


def test_reads_format_1(program: ModuleType) -> None:
    manifest, files = program.read_files(FORMAT_1 / "checkpoints" / "step-000000000003")
    assert manifest["format"] == 1
    expected = json.loads((FORMAT_1 / "expected.json").read_text())["model"]
    assert {name: tensor.tolist() for name, tensor in program.weights(files).items()} == expected


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "digests.json", "model.safetensors"])
def test_finds_damage(program: ModuleType, tmp_path: Path, name: str) -> None:
    store = open_store(tmp_path)
    write_checkpoint(store, 7, {"model": {"weight": torch.ones(3)}})
    path = Path(store.path(7)) / (name if name == "manifest.json" else f"{RUN}-0001/{name}")
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1) if name != "state.json" else b"{}")
    with pytest.raises(SystemExit, match="damaged"):
        program.read_files(Path(store.path(7)))
