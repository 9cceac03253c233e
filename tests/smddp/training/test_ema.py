"""The moving average of the weights: what an update does, and what a trainer makes of it."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from smddp import Trainer, load_weights
from smddp.job import Job
from smddp.training.ema import ExponentialMovingAverage


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def test_its_weights_are_those_of_torchs_averaged_model() -> None:
    model = network()
    ours = ExponentialMovingAverage(model, 0.9)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(4):
        for weight in model.parameters():
            weight.data.add_(torch.randn_like(weight))
        model(torch.randn(8, 3))  # moves BatchNorm's statistics
        ours.update_parameters(model)
        theirs.update_parameters(model)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(ours.state_dict()[name], value), name


def test_a_count_is_copied_and_a_buffer_that_the_module_replaced_is_followed() -> None:
    model = network()
    average = ExponentialMovingAverage(model, 0.9)
    for number in range(3):
        model(torch.randn(8, 3))
        model[1].running_mean = torch.full((4,), float(number))
        average.update_parameters(model)
    assert average.module[1].num_batches_tracked == 3
    expected = 0.9 * (0.9 * 0.0 + 0.1 * 1.0) + 0.1 * 2.0
    assert torch.allclose(average.module[1].running_mean, torch.full((4,), expected))


def test_complex_weights_and_buffers_are_averaged_as_by_torch() -> None:
    model = nn.ParameterDict({"spectrum": nn.Parameter(torch.ones(3, dtype=torch.complex64))})
    model.register_buffer("filter", torch.ones(2, dtype=torch.complex128))
    ours = ExponentialMovingAverage(model, 0.9)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(3):
        model["spectrum"].data.add_(1.0 + 2.0j)
        model.get_buffer("filter").mul_(1.0j)
        ours.update_parameters(model)
        theirs.update_parameters(model)
    assert not torch.equal(ours.module["spectrum"], model["spectrum"])
    for name, value in theirs.module.state_dict().items():
        assert torch.equal(ours.module.state_dict()[name], value), name


def test_weights_that_are_one_stay_one() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    average = ExponentialMovingAverage(model, 0.5)
    average.update_parameters(model)
    assert average.module[1].weight is average.module[0].weight
    assert not any(weight.requires_grad for weight in average.parameters())


@pytest.mark.parametrize("decay", [0.0, 1.0, 1.5, float("nan")])
def test_a_decay_out_of_its_range_is_refused(job: Job, decay: float) -> None:
    model = network()
    with pytest.raises(ValueError, match=r"ema=.*: give the decay, a number between 0 and 1, such as 0.999"):
        Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), ema=decay)


def test_the_average_of_half_weights_is_refused_for_it_would_stand_still(job: Job) -> None:
    model = network()
    with pytest.raises(
        ValueError, match=r"ema=0.999 of trained weights in torch.float16: an update would round to nothing"
    ):
        Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), precision="O3", ema=0.999)


def test_frozen_half_weights_are_averaged_until_they_are_trained() -> None:
    model = nn.Sequential(nn.Linear(2, 2).bfloat16().requires_grad_(False), nn.Linear(2, 1))
    average = ExponentialMovingAverage(model, 0.5)
    for _ in range(3):
        model[1].weight.data.add_(1.0)
        average.update_parameters(model)
    assert torch.equal(average.module[0].weight, model[0].weight)
    assert torch.allclose(average.module[1].weight, model[1].weight - 0.75)
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match=r"ema=0.5 of trained weights in torch.bfloat16"):
        average.update_parameters(model)


def test_a_step_that_fp16_skips_leaves_the_average_as_it_was(job: Job) -> None:
    model = network()
    trainer = Trainer(job, model, torch.optim.AdamW(model.parameters(), fused=True), precision="fp16", ema=0.9)
    for _ in trainer.epochs(1):
        loss = trainer.model(torch.ones(2, 3)).sum()
        trainer.step(loss * float("inf"))
        assert trainer._parts.state["ema"].n_averaged == 0
        trainer.step(trainer.model(torch.ones(2, 3)).sum() * 1e-6)
        assert trainer._parts.state["ema"].n_averaged == 1


def test_the_average_is_evaluated_in_the_trainers_precision_and_saved_under_the_models_names(job: Job) -> None:
    model = network()
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.5), precision="bf16", ema=0.5)
    for _ in trainer.epochs(1):
        for _ in range(2):
            assert trainer.step(trainer.model(torch.randn(4, 3)).square().mean()) is True
    assert trainer.ema is not None
    assert not trainer.ema.training
    assert trainer.ema(torch.ones(2, 3)).dtype == torch.float32
    trainer.save_model(trainer.ema)

    saved = network()
    safetensors.torch.load_model(saved, job.model_dir / "model.safetensors")
    assert torch.equal(saved[0].weight, trainer._parts.state["ema"].module[0].weight)  # type: ignore[union-attr, index]
    assert not torch.equal(saved[0].weight, model[0].weight)
    from_checkpoint = network()
    load_weights(from_checkpoint, job.checkpoint_dir, part="ema")
    assert torch.equal(from_checkpoint[0].weight, saved[0].weight)


def test_a_trainer_without_an_average_has_none(job: Job) -> None:
    model = network()
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=2, state={"ema": network()})
    assert trainer.ema is None
    for _ in trainer.epochs(1):
        done = [trainer.step(trainer.model(torch.randn(4, 3)).mean()) for _ in range(4)]
    assert done == [False, True, False, True]
