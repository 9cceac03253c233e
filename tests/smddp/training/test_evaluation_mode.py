"""A model that an evaluation has left in evaluation mode is told once; layers that shall be in it are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from smddp import Job, Trainer

TOLD = "the model trains in evaluation mode: "


def trainer_of(job: Job, model: nn.Module) -> Trainer:
    return Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.01))


def train(trainer: Trainer, steps: int = 2) -> None:
    for _ in range(steps):
        trainer.step(trainer.model(torch.ones(2, 4)).square().mean())


def test_a_model_that_an_evaluation_left_in_evaluation_mode_is_told_once(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = trainer_of(job, nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4), nn.Dropout(0.1)))
    train(trainer)
    trainer.model.eval()
    with torch.no_grad():
        trainer.model(torch.ones(2, 4))
    assert TOLD not in caplog.text
    train(trainer)
    (told,) = [message for message in caplog.messages if TOLD in message]
    assert "dropout is off in 2 layers, and BatchNorm keeps its statistics in 1 layer. Call" in told
    assert "Call trainer.model.train()" in told


@pytest.mark.parametrize("model", [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.0))])
def test_a_model_that_is_the_same_in_both_modes_is_not_told(
    job: Job, caplog: pytest.LogCaptureFixture, model: nn.Module
) -> None:
    train(trainer_of(job, model.eval()))
    assert TOLD not in caplog.text


def test_layers_that_are_in_evaluation_mode_by_themselves_are_not_told(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval())
    train(trainer_of(job, model))
    assert TOLD not in caplog.text


@pytest.mark.parametrize(
    ("layer", "is_told"),
    [
        (nn.MultiheadAttention(4, 1, dropout=0.1), True),
        (nn.MultiheadAttention(4, 1), False),
        (nn.LSTM(4, 4, num_layers=2, dropout=0.1), True),
    ],
)
def test_dropout_within_a_layer_counts(
    job: Job, caplog: pytest.LogCaptureFixture, layer: nn.Module, is_told: bool
) -> None:
    class WithUnused(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.unused = layer

    train(trainer_of(job, WithUnused().eval()))
    assert (TOLD in caplog.text) is is_told
