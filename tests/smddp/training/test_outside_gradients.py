"""Gradients that ``trainer.step`` has not made are told once, before they change the weights in silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from smddp import Job, Trainer

BATCH = torch.ones(2, 4)
TOLD = "the weights have gradients from outside of trainer.step()"


@pytest.fixture
def trainer(job: Job) -> Trainer:
    model = nn.Linear(4, 1)
    return Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.01))


def loss_of(model: Callable[[Tensor], Tensor]) -> Tensor:
    return (model(BATCH) - 1).square().mean()


def test_a_backward_of_the_same_loss_is_told(trainer: Trainer, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        loss = loss_of(trainer.model)
        loss.backward(retain_graph=True)
        trainer.step(loss)
    assert sum(TOLD in message for message in caplog.messages) == 1


def test_gradients_after_zeros_are_told(trainer: Trainer, caplog: pytest.LogCaptureFixture) -> None:
    weights = list(trainer.model.parameters())
    for step in range(4):
        loss = loss_of(trainer.model)
        if step == 1:
            weights[0].grad = torch.zeros_like(weights[0])
        if step > 1:
            loss.backward(retain_graph=True)
        trainer.step(loss)
    assert sum(TOLD in message for message in caplog.messages) == 1


def test_the_step_of_another_trainer_through_this_model_is_told(
    trainer: Trainer, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    generator = nn.Linear(4, 4)
    generating = Trainer(job, generator, torch.optim.SGD(generator.parameters(), lr=0.1), name="generator")
    trainer.step(loss_of(trainer.model))
    assert TOLD not in caplog.text
    generating.step(trainer.model(generating.model(BATCH)).mean())
    trainer.step(loss_of(trainer.model))
    assert caplog.text.count(TOLD) == 1


def test_gradients_that_change_nothing_are_not_told(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(4, 1)
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=2)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    for _ in range(6):  # of a step's own first micro-batch, too
        inputs = BATCH.clone().requires_grad_(True)
        torch.autograd.grad(model(inputs).sum(), inputs)
        trainer.step(loss_of(trainer.model))
    assert TOLD not in caplog.text
