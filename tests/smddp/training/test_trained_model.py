"""A loss goes in, a step comes out: the bits of a hand-written loop, and what a checkpoint needs beside the weights."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from smddp.distributed import DDPOptions, current_membership, join
from smddp.errors import TrainingDivergedError
from smddp.job import Job
from smddp.training import trained_model
from smddp.training.trained_model import TrainedModel

OPTIONS: dict[str, Any] = {
    "schedule_each": "step",
    "precision": "fp32",
    "accumulate": 1,
    "clip_norm": None,
    "clip_value": None,
    "ema": None,
    "on_nonfinite": None,
    "rewinds": 3,
    "check_replicas": 100,
    "beside": tuple,
    "save": lambda: None,
    "samples": lambda _: [],
    "move_model": True,
    "parallel": DDPOptions(),
    "timing": False,
}


def trained(job: Job, **options: Any) -> TrainedModel:
    torch.manual_seed(3)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return TrainedModel(
        model, [optimizer], [schedule], current_membership() or join(job.cluster), **{**OPTIONS, **options}
    )


def test_a_loss_goes_in_and_the_step_of_a_loop_by_hand_comes_out(job: Job) -> None:
    ours, theirs = trained(job, accumulate=2, clip_norm=0.1), trained(job)
    done = []
    for batch in torch.randn(4, 8, 4).split(2):
        for half in batch:
            loss = (ours.model(half) - 1).square().mean()
            done.append(ours.step(loss, 1.0, items=None, collect=True))
            ((theirs.module(half) - 1).square().mean() / 2).backward()
        nn.utils.clip_grad_norm_(theirs.module.parameters(), 0.1)
        theirs.optimizers[0].step()
        theirs.schedulers[0].step()
        theirs.optimizers[0].zero_grad()
    assert torch.equal(ours.module.weight, theirs.module.weight)  # type: ignore[arg-type]
    assert done == [False, True, False, True]
    assert (ours.progress.steps, theirs.progress.steps) == (2, 0)
    assert ours.optimizer_step.learning_rate == 0.025


@pytest.mark.parametrize(
    ("precision", "said"), [("auto", ['computing in fp32: precision="auto" on a CPU']), ("fp32", [])]
)
def test_the_log_says_once_what_auto_is(
    job: Job, precision: str, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    join(job.cluster)
    trained_model._log_precision.cache_clear()
    with caplog.at_level(logging.INFO, logger=trained_model.__name__):
        trained(job, precision=precision)
        trained(job, precision=precision)
    assert caplog.messages == said


def test_a_step_that_was_begun_is_forgotten_and_a_short_one_is_its_own_mean(job: Job) -> None:
    ours, whole = trained(job, accumulate=3), trained(job)
    batch = torch.randn(8, 4)
    ours.step(ours.model(batch + 5).sum(), 1.0, items=None, collect=False)
    ours.restart()
    ours.step(ours.model(batch).sum(), 1.0, items=None, collect=False)
    assert ours.finish_window()
    whole.step(whole.model(batch).sum(), 1.0, items=None, collect=False)
    assert torch.allclose(ours.module.weight, whole.module.weight)  # type: ignore[arg-type]
    assert ours.progress.steps == whole.progress.steps == 1


def test_the_parts_of_a_checkpoint_beside_model_and_optimizer(job: Job) -> None:
    assert trained(job).own_state == trained(job).per_rank_state == {}
    powersgd = DDPOptions(comm_hook="powersgd")
    model = trained(job, ema=0.9, schedule_each="epoch", parallel=powersgd)
    assert list(model.own_state) == ["ema", "epoch_schedules"]
    assert list(model.per_rank_state) == ["powersgd"]
    model.step(model.model(torch.ones(1, 4)).sum(), 1.0, items=None, collect=False)
    assert model.optimizer_step.learning_rate == 0.1
    model.end_epoch()
    assert (model.progress.epoch, model.optimizer_step.learning_rate) == (1, 0.05)


def test_weights_that_are_not_finite_are_not_saved(job: Job) -> None:
    model = trained(job)
    model.before_save()
    nn.init.constant_(model.module.weight, float("inf"))  # type: ignore[arg-type]
    with pytest.raises(TrainingDivergedError, match="at step 0 the model's weight has values"):
        model.before_save()


def test_a_loss_without_a_gradient_is_refused(job: Job) -> None:
    model = trained(job)
    with torch.no_grad():
        of_no_grad = model.model(torch.ones(1, 4)).mean()
    for loss in (of_no_grad, model.model(torch.ones(1, 4)).mean().detach()):
        with pytest.raises(ValueError, match="it reaches none of the 2 trainable parameters"):
            model.step(loss, 1.0, items=None, collect=False)
    model.module.requires_grad_(False)
    with pytest.raises(ValueError, match=r"none of the 2 parameters of the optimizer is trainable\. Call requires"):
        model.step(model.model(torch.ones(1, 4)).mean(), 1.0, items=None, collect=False)


def test_a_loss_whose_backward_pass_was_made_before_is_refused(job: Job) -> None:
    model = trained(job)
    loss = model.model(torch.ones(1, 4)).square().mean()
    loss.backward()
    with pytest.raises(ValueError, match="got a loss whose backward pass was made before, at least in part") as refused:
        model.step(loss, 1.0, items=None, collect=False)
    assert isinstance(refused.value.__cause__, RuntimeError)  # torch's own words


class _Fails(torch.autograd.Function):
    """An operation of the script that fails in its backward pass."""

    @staticmethod
    def forward(_context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(_context: Any, _gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        raise RuntimeError("no gradient of mine")


def test_another_error_of_the_backward_pass_stays_as_it_is(job: Job) -> None:
    model = trained(job)
    with pytest.raises(RuntimeError, match="no gradient of mine"):
        model.step(_Fails.apply(model.model(torch.ones(1, 4))).mean(), 1.0, items=None, collect=False)


def test_a_loss_for_each_sample_is_refused(job: Job) -> None:
    model = trained(job)
    losses = model.model(torch.ones(3, 4)).mean(dim=1)
    with pytest.raises(ValueError, match=r"got a loss of shape \[3\]: give a scalar, such as loss\.mean\(\)"):
        model.step(losses, 1.0, items=None, collect=False)
    assert model.step(losses.mean().reshape(1, 1), 1.0, items=None, collect=False)  # as backward() takes it
