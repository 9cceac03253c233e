"""Random numbers of GPUs that are none: generators of the CPU stand for theirs."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from smddp.checkpoint.run_state import capture_random_state, of_own_device, restore_random_state


@pytest.fixture(autouse=True)
def _as_they_were() -> Iterator[None]:
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[torch.Generator]:
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(generators))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: generators[device].get_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: generators[device].set_state(state))
    return generators


def drawn(generators: list[torch.Generator]) -> list[float]:
    return [torch.rand(1, generator=each).item() for each in generators]


def test_each_gpu_goes_on_with_its_own_random_numbers(gpus: list[torch.Generator]) -> None:
    state = capture_random_state()
    expected = drawn(gpus)
    drawn(gpus)
    restore_random_state([state], rank=0)
    assert drawn(gpus) == expected
    assert expected[0] != expected[1]


def test_another_number_of_gpus_is_told_and_those_there_are_go_on(
    gpus: list[torch.Generator], caplog: pytest.LogCaptureFixture
) -> None:
    state = capture_random_state()
    expected = drawn(gpus)
    del gpus[1]
    restore_random_state([state], rank=0)
    assert drawn(gpus) == expected[:1]
    assert "the random state of 2 GPUs for rank 0, here are 1" in caplog.text


def test_a_state_for_a_rank_on_another_device_has_that_of_the_own_device_everywhere() -> None:
    state = capture_random_state() | {"late": [torch.tensor(0), torch.tensor(1)]}
    assert of_own_device(state, 1) == state | {"late": [state["late"][1]] * 2}
    assert of_own_device(state, 5) == state, "a rank whose device has no generator"
