"""A loss that jumps is told of once in a while; noise, a slow rise and a first epoch are not."""

from __future__ import annotations

import random

import pytest

from smddp.training.step_loss import LossSpikes


def warned(caplog: pytest.LogCaptureFixture, losses: list[float]) -> list[int]:
    """Return the numbers of the losses that a warning named."""
    caplog.clear()
    spikes = LossSpikes()
    for number, loss in enumerate(losses):
        spikes.note(number, loss)
    assert all("look at the data of the last steps" in text for text in caplog.messages)
    return [int(text.split()[4]) for text in caplog.messages]


def test_a_spike_is_told_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(0)
    losses = [1 + chance.gauss(0, 0.05) for _ in range(200)]
    assert warned(caplog, losses) == []
    for place in (50, 55, 90):
        losses[place] = 3.0
    assert warned(caplog, losses) == [50, 90]
    assert caplog.messages[0].startswith(
        "the loss of step 50 is 3, and the median of the 32 metric lines before is "
    ), caplog.messages


def test_only_a_loss_far_above_many_before_is_a_spike(caplog: pytest.LogCaptureFixture) -> None:
    assert warned(caplog, [1.0] * 15 + [5.0]) == []
    assert warned(caplog, [1.0] * 16 + [5.0]) == [16]
    assert warned(caplog, [1.0] * 16 + [1.9]) == []
    assert warned(caplog, [0.1, 3.0] * 16 + [5.0]) == []
    assert warned(caplog, [-1.0] * 32 + [0.5]) == [32]
    assert warned(caplog, [1.01**number for number in range(300)]) == []
    assert warned(caplog, [1.0] * 32 + [float("nan"), float("inf"), 0.001]) == []
