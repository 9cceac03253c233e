"""What others saved as a checkpoint, from which a run goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from smddp.checkpoint import Checkpointer, list_checkpoints
from smddp.checkpoint.convert import export, import_checkpoint
from smddp.checkpoint.convert.saved_model import write_weights
from smddp.checkpoint.convert.weights import load_weights
from smddp.errors import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Training:
    """A model and its optimizer, after a step."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.5 + seed)
        self.model(torch.randn(4, 3)).sum().backward()
        self.optimizer.step()

    @property
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def state(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def resume(self, place: Path) -> int:
        with Checkpointer(place, self.parts) as checkpointer:
            manifest = checkpointer.load()
        assert manifest is not None
        return manifest.step


def test_a_run_goes_on_from_a_torch_file(tmp_path: Path) -> None:
    before, after = Training(1), Training(2)
    model, optimizer = before.state().values()
    torch.save({"epoch": 3, "model_state_dict": model, "optimizer_state_dict": optimizer}, tmp_path / "old.pt")
    assert import_checkpoint(tmp_path / "old.pt", tmp_path / "run", step=70, epoch=3) == ["model", "optimizer"]
    assert after.resume(tmp_path / "run") == 70
    assert str(after.state()) == str(before.state())
    (found,) = list_checkpoints(tmp_path / "run")
    assert found.valid
    assert found.manifest is not None
    assert found.manifest.epoch == 3


def test_a_run_goes_on_from_what_dcp_saved(tmp_path: Path) -> None:
    before, after = Training(1), Training(2)
    dcp.save(before.state(), checkpoint_id=tmp_path / "dcp", no_dist=True)
    import_checkpoint(tmp_path / "dcp", tmp_path / "run", step=70)
    assert after.resume(tmp_path / "run") == 70
    assert str(after.state()) == str(before.state())


@pytest.mark.parametrize("name", ["all.pt", "dcp"])
def test_out_and_in_again_is_the_same_bit_for_bit(tmp_path: Path, name: str) -> None:
    before, after = Training(1), Training(2)
    with Checkpointer(tmp_path / "one", before.parts) as checkpointer:
        checkpointer.save(4)
    export(tmp_path / "one", tmp_path / name, "dcp" if name == "dcp" else None, ["model", "optimizer"])
    import_checkpoint(tmp_path / name, tmp_path / "two", step=4)
    assert after.resume(tmp_path / "two") == 4
    for one, other in zip(before.model.state_dict().values(), after.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert str(after.optimizer.state_dict()) == str(before.optimizer.state_dict())


def test_a_published_model_with_tied_weights_comes_in_with_all_its_names(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(4, 3)
            self.head = nn.Linear(3, 4, bias=False)
            self.head.weight = self.embed.weight

    before, after = Tied(), Tied()
    write_weights(before.state_dict(), tmp_path / "model")
    assert import_checkpoint(tmp_path / "model" / "model.safetensors", tmp_path / "run") == ["model"]
    with Checkpointer(tmp_path / "run", {"model": after}) as checkpointer:
        checkpointer.load()
    assert torch.equal(after.head.weight, before.embed.weight)


def test_what_is_no_part_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = {"model": Training().state()["model"], "epoch": 3, "args": {"lr": 0.1}, "bad name!": {"a": 1}, "rng": {}}
    torch.save(state, tmp_path / "old.pt")
    assert import_checkpoint(tmp_path / "old.pt", tmp_path / "run") == ["args", "model"]
    assert "left out epoch, bad name!, rng of" in caplog.text


def test_of_two_names_for_a_part_the_exact_one_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = nn.Linear(1, 1).state_dict(), nn.Linear(1, 1).state_dict()
    torch.save({"model": one, "state_dict": other}, tmp_path / "old.pt")
    import_checkpoint(tmp_path / "old.pt", tmp_path / "run")
    module = nn.Linear(1, 1)
    with Checkpointer(tmp_path / "run", {"model": module}) as checkpointer:
        checkpointer.load()
    assert torch.equal(module.weight, one["weight"])
    assert "has 'model', which is read, and also 'state_dict', which is not" in caplog.text


def test_two_aliases_of_a_part_are_refused(tmp_path: Path) -> None:
    weights = nn.Linear(1, 1).state_dict()
    torch.save({"model": weights, "lr_scheduler": {"a": 1}, "scheduler_state_dict": {"a": 2}}, tmp_path / "old.pt")
    with pytest.raises(
        CheckpointError, match="has 'lr_scheduler' and 'scheduler_state_dict', and each may be its 'sch"
    ):
        import_checkpoint(tmp_path / "old.pt", tmp_path / "run")
    load_weights(nn.Linear(1, 1), tmp_path / "old.pt")  # does not read the schedulers


def test_checkpoints_that_are_there_stay(tmp_path: Path) -> None:
    torch.save(Training().state(), tmp_path / "old.pt")
    for step in range(6):
        import_checkpoint(tmp_path / "old.pt", tmp_path / "run", step=step)
    assert len(list_checkpoints(tmp_path / "run")) == 6
    with pytest.raises(CheckpointError, match=r"there is a checkpoint .*step-000000000003 already"):
        import_checkpoint(tmp_path / "old.pt", tmp_path / "run", step=3)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_would_run_code_is_refused(tmp_path: Path, zipped: bool) -> None:
    torch.save({"model": Bomb(tmp_path / "ran")}, tmp_path / "evil.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="could run code"):
        import_checkpoint(tmp_path / "evil.pt", tmp_path / "run")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "run").exists()


def test_bad_input_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    torch.save(Training().state(), tmp_path / "old.pt")
    for source, options, error, told in [
        ("nothing.pt", {}, CheckpointError, "there is nothing at"),
        ("old.pt", {"step": -1}, ValueError, "^step is -1: give a whole number from 0 to"),
        ("old.pt", {"step": 10**12}, ValueError, "^step is 10{12}: give a whole number from 0 to"),
        ("old.pt", {"epoch": -1}, ValueError, "^epoch is -1: give a whole number of 0 or more"),
    ]:
        with pytest.raises(error, match=told):
            import_checkpoint(tmp_path / source, tmp_path / "run", **options)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.pt"]
    import_checkpoint(tmp_path / "old.pt", tmp_path / "run")
    with pytest.raises(CheckpointError, match="is a checkpoint already"):
        import_checkpoint(tmp_path / "run", tmp_path / "other")
    (tmp_path / "file").touch()
    with pytest.raises((CheckpointError, OSError)):
        import_checkpoint(tmp_path / "old.pt", tmp_path / "file")


def test_ranks_do_not_import_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(Training().state(), tmp_path / "old.pt")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(CheckpointError, match="in one process"):
        import_checkpoint(tmp_path / "old.pt", tmp_path / "run")
