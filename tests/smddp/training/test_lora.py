"""A model with peft's adapters resumes exactly from checkpoints that have the adapters alone."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from smddp import CheckpointPolicy, Trainer
from smddp.errors import CheckpointError
from smddp.job import Job


def base() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 2))


def trained(job: Job, steps: int, *, seed: int, ema: float | None, save_frozen: bool = False) -> Trainer:
    import peft  # only where the marker `loops` requires it

    model = base()
    torch.manual_seed(seed)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=4, target_modules=["0", "2"]))
    optimizer = torch.optim.AdamW([each for each in adapted.parameters() if each.requires_grad], lr=0.05)
    policy = CheckpointPolicy(every=4, save_frozen=save_frozen)
    trainer = Trainer(job, adapted, optimizer, precision="fp32", checkpoints=policy, ema=ema)
    draw = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(40, 6, generator=draw), torch.randn(40, 2, generator=draw))
    batches = trainer.batches(trainer.loader(data, batch_size=8))
    for _step in trainer.steps_to(steps):
        inputs, targets = next(batches)
        trainer.step((trainer.model(inputs) - targets).square().mean())
    return trainer


@pytest.mark.loops
@pytest.mark.parametrize("ema", [None, 0.9])
def test_a_resume_goes_on_to_the_bit(tmp_path: Path, caplog: pytest.LogCaptureFixture, ema: float | None) -> None:
    job, other = (Job.detect({"SMDDP_RUN_DIR": str(tmp_path / name)}) for name in ("interrupted", "whole"))
    with caplog.at_level(logging.INFO):
        trained(job, 7, seed=1, ema=ema)
    assert "checkpoints leave out 6 frozen weights of model (" in caplog.text
    resumed = trained(job, 11, seed=2, ema=ema)  # which draws other adapters, and takes those of the checkpoint
    whole = trained(other, 11, seed=1, ema=ema)
    for name, weight in whole.module.state_dict().items():
        assert torch.equal(weight, resumed.module.state_dict()[name]), name
    if whole.ema is not None and resumed.ema is not None:
        for name, weight in whole.ema.state_dict().items():
            assert torch.equal(weight, resumed.ema.state_dict()[name]), name
    files = [file.stat().st_size for file in job.checkpoint_dir.glob("step-*/*/model*.safetensors")]
    assert files, "no checkpoint"
    assert max(files) < 30_000 < sum(weight.nbytes for weight in base().parameters())


@pytest.mark.loops
def test_a_loss_of_merged_adapters_is_refused_with_the_remedy(tmp_path: Path) -> None:
    trainer = trained(Job.detect({"SMDDP_RUN_DIR": str(tmp_path)}), 2, seed=1, ema=None)
    trainer.module.merge_adapter()
    with pytest.raises(
        ValueError, match=r"without a gradient: it reaches none of the 4 trainable parameters\. .* unmerge_adapter"
    ):
        trainer.step(trainer.model(torch.ones(1, 6)).square().mean())
    trainer.module.unmerge_adapter()
    trainer.step(trainer.model(torch.ones(1, 6)).square().mean())


@pytest.mark.loops
@pytest.mark.parametrize("save_frozen", [True, False])
def test_merged_adapters_are_not_saved(tmp_path: Path, save_frozen: bool) -> None:
    """A resume would add them to a base that has them already."""
    trainer = trained(Job.detect({"SMDDP_RUN_DIR": str(tmp_path)}), 2, seed=1, ema=None, save_frozen=save_frozen)
    before = [file.name for file in (tmp_path / "checkpoints").iterdir()]
    trainer.module.merge_adapter()
    with pytest.raises(
        CheckpointError, match=r"the adapters of .* are merged into the weights of model, and a resume would add"
    ):
        trainer.save(wait=True)
    assert [file.name for file in (tmp_path / "checkpoints").iterdir()] == before
    trainer.module.unmerge_adapter()
    trainer.save(wait=True)
