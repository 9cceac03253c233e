"""A checkpoint in the formats of others: bit for bit, loaded by their own means, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from smddp.checkpoint.convert import export, saved_model
from smddp.checkpoint.stores import open_store
from smddp.errors import CheckpointError
from tests.smddp.checkpoint.by_hand import write_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class Training:
    """A model in training, saved at steps 5 and 9."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.model = net()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4])
        for step in (5, 9):
            self.model(torch.randn(8, 3)).sum().backward()
            self.optimizer.step()
            self.scheduler.step()
            write_checkpoint(open_store(place), step, self.state())

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "ranks": [{"rng": np.arange(3)}],
        }


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path / "run")


def same(state: dict[str, torch.Tensor], model: nn.Module) -> bool:
    own = model.state_dict()
    return sorted(state) == sorted(own) and all(torch.equal(state[name], own[name]) for name in own)


def test_a_model_directory_is_as_save_model_writes_it(training: Training, tmp_path: Path) -> None:
    manifest = export(training.place, tmp_path / "model")
    assert manifest.step == 9
    assert same(safetensors.torch.load_file(tmp_path / "model" / "model.safetensors"), training.model)
    assert same(torch.load(tmp_path / "model" / "model.pt", weights_only=True), training.model)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.pt", "model.safetensors"]


def test_a_file_is_what_its_suffix_says(training: Training, tmp_path: Path) -> None:
    export(training.place, tmp_path / "w.safetensors")
    assert same(safetensors.torch.load_file(tmp_path / "w.safetensors"), training.model)
    for name in ("w.pt", "w.pth", "w.bin", "w.ckpt"):
        export(training.place, tmp_path / name)
        assert same(torch.load(tmp_path / name, weights_only=True), training.model)


def test_one_checkpoint_can_be_exported(training: Training, tmp_path: Path) -> None:
    assert export(training.place / "step-000000000005", tmp_path / "w.pt").step == 5


def test_all_parts_in_a_torch_file_load_with_weights_only(training: Training, tmp_path: Path) -> None:
    export(training.place, tmp_path / "all.pt", parts=["model", "optimizer", "scheduler"])
    loaded = torch.load(tmp_path / "all.pt", weights_only=True)
    other = net()
    other.load_state_dict(loaded["model"])
    optimizer = torch.optim.Adam(other.parameters())
    optimizer.load_state_dict(loaded["optimizer"])
    assert same(loaded["model"], training.model)
    for number, state in training.optimizer.state_dict()["state"].items():
        assert all(torch.equal(optimizer.state_dict()["state"][number][key], value) for key, value in state.items())
    assert loaded["scheduler"] == training.scheduler.state_dict()


def test_dcp_loads_what_was_exported_to_it(training: Training, tmp_path: Path) -> None:
    export(training.place, tmp_path / "dcp", "dcp", ["model", "optimizer"])
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])  # DCP loads what is there already
    model(torch.randn(8, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert same(state["model"], training.model)
    for number, saved in training.optimizer.state_dict()["state"].items():
        assert all(torch.equal(state["optimizer"]["state"][number][key], value) for key, value in saved.items())
    assert state["optimizer"]["param_groups"] == training.optimizer.state_dict()["param_groups"]


def test_damaged_weights_are_never_exported(training: Training, tmp_path: Path) -> None:
    for file in (training.place / "step-000000000009").rglob("model.safetensors"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    with pytest.raises(CheckpointError, match="was changed"):
        export(training.place / "step-000000000009", tmp_path / "w.pt")
    assert not (tmp_path / "w.pt").exists()
    assert export(training.place, tmp_path / "w.pt").step == 5, "the newest valid one"


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"destination": "w.xyz"}, ValueError, "no format is known for .*w.xyz': give one of model, safetensors"),
        ({"destination": "w.pt", "format": "onnx"}, ValueError, "no format is known"),
        ({"destination": "w.pt", "parts": ["teacher"]}, CheckpointError, "has no teacher, only model, optimizer"),
        ({"destination": "w.safetensors", "parts": ["optimizer"]}, CheckpointError, "is no model"),
        ({"destination": "m", "parts": ["model", "optimizer"]}, CheckpointError, "holds the weights of one part"),
        ({"destination": "w.pt", "parts": ["ranks"]}, CheckpointError, "numpy.*weights_only=True"),
        ({"destination": "d", "format": "dcp", "parts": ["scheduler"]}, CheckpointError, "a text of the key 2 in"),
        ({"destination": "there.pt"}, CheckpointError, "there.pt is there already"),
        ({"destination": "file/w.pt"}, CheckpointError, "could not write .*file/w.pt"),
        ({"destination": "file/d", "format": "dcp"}, CheckpointError, "could not write .*file/d"),
        ({"source": "there.pt", "destination": "w.pt"}, CheckpointError, "is no checkpoint"),
        ({"source": "nothing", "destination": "w.pt"}, CheckpointError, "there is nothing at"),
    ],
)
def test_what_cannot_be_exported_is_told_and_leaves_nothing(
    training: Training, tmp_path: Path, arguments: dict[str, Any], error: type[Exception], told: str
) -> None:
    torch.save({}, tmp_path / "there.pt")
    (tmp_path / "file").touch()
    before = sorted(path.name for path in tmp_path.iterdir())
    source = tmp_path / arguments.pop("source", "run")
    with pytest.raises(error, match=told):
        export(source, tmp_path / arguments.pop("destination"), **arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_state_that_a_safetensors_file_cannot_hold_is_told(tmp_path: Path) -> None:
    write_checkpoint(open_store(tmp_path / "run"), 1, {"model": {"a": torch.ones(1), "_extra_state": "text"}})
    with pytest.raises(CheckpointError, match="cannot hold _extra_state of 'model'"):
        export(tmp_path / "run", tmp_path / "w.safetensors")


@pytest.mark.parametrize("destination", ["s3://bucket/model", Path("s3://bucket/model"), "gs://bucket/model"])
def test_a_uri_is_no_destination(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destination: str | Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is no path: export to a file or a directory, and copy that there"):
        export(training.place, destination)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_model_directory_whose_second_file_fails_does_not_appear(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CheckpointError("No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(saved_model, "_save", fail)
        with pytest.raises(CheckpointError, match="No space left"):
            export(training.place, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    export(training.place, tmp_path / "model")
