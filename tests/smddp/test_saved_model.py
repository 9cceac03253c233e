from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from smddp.saved_model import write_model


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def test_both_files_hold_the_weights(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    write_model(model, tmp_path / "model")

    from_safetensors = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    from_pt = torch.load(tmp_path / "model" / "model.pt", weights_only=True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(from_safetensors[name], tensor)
        assert torch.equal(from_pt[name], tensor)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.pt", "model.safetensors"]


def test_weights_that_two_layers_share_are_written_and_loaded(tmp_path: Path) -> None:
    model = Tied()
    write_model(model, tmp_path)
    other = Tied()
    safetensors.torch.load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(other.head.weight, model.embed.weight)


def test_a_write_that_fails_leaves_the_old_model_and_no_debris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(nn.Linear(2, 2), tmp_path)
    before = (tmp_path / "model.pt").read_bytes()

    def full(weights: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="disk full"):
        write_model(nn.Linear(2, 2), tmp_path)
    assert (tmp_path / "model.pt").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "model.safetensors"]
