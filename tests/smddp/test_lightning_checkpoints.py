"""Lightning's checkpoints on the verified store: they go on, and a changed byte is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="no Lightning: pip install smddp[loops]")

import lightning
from lightning.pytorch.callbacks import ModelCheckpoint

from smddp.errors import CheckpointError
from smddp.lightning import VerifiedCheckpointIO, is_checkpoint

pytestmark = pytest.mark.loops


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 4)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return (self.net(batch[0]) - batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def fit(directory: Path, epochs: int, resume_from: Path | None = None) -> lightning.Trainer:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(32, 4))
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        plugins=[VerifiedCheckpointIO()],
        callbacks=[ModelCheckpoint(directory, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=8), ckpt_path=resume_from)
    return trainer


def weights(trainer: lightning.Trainer) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in trainer.lightning_module.parameters()])


def test_a_resume_goes_on_to_the_same_weights_and_a_changed_byte_is_refused(tmp_path):
    whole = fit(tmp_path / "whole", 3)
    fit(tmp_path / "parts", 2)
    last = tmp_path / "parts" / "last.ckpt"
    resumed = fit(tmp_path / "parts", 3, last)
    assert resumed.global_step == whole.global_step == 12
    assert torch.equal(weights(resumed), weights(whole))

    (tensors,) = last.glob("step-000000000012/*/lightning.safetensors")
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"but none is valid \(.*lightning\.safetensors was changed"):
        fit(tmp_path / "parts", 4, last)


def test_what_lies_at_the_path_is_replaced_whatever_its_step(tmp_path):
    io, path = VerifiedCheckpointIO(), tmp_path / "last.ckpt"
    for step, value in ((5, 1.0), (5, 2.0), (9, 3.0), (2, 4.0)):
        drawn = torch.get_rng_state()
        io.save_checkpoint({"global_step": step, "state_dict": {"weight": torch.tensor(value)}}, path)
        assert torch.equal(torch.get_rng_state(), drawn), "a save must not change what is drawn next"
        torch.rand(1)
        assert io.load_checkpoint(path)["state_dict"]["weight"] == value
        assert io.load_checkpoint(path)["global_step"] == step
    io.remove_checkpoint(path)
    assert not path.exists()


def test_a_save_that_was_cut_off_is_no_checkpoint(tmp_path):
    io, path = VerifiedCheckpointIO(), tmp_path / "last.ckpt"
    io.save_checkpoint({"global_step": 5, "state_dict": {}}, path)
    assert is_checkpoint(path)
    (path / "step-000000000005" / "manifest.json").unlink()
    assert not is_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*, or its save was cut off"):
        io.load_checkpoint(path)


def test_a_file_of_lightnings_own_is_refused(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "last.ckpt")
    assert is_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match="is a file of Lightning's own"):
        VerifiedCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")


def test_what_only_a_pickle_could_hold_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match=r"lightning\.callbacks\.Mine is a set"):
        VerifiedCheckpointIO().save_checkpoint({"global_step": 1, "callbacks": {"Mine": {1}}}, tmp_path / "a.ckpt")
