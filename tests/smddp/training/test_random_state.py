from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smddp import seed_everything
from smddp.checkpoint.run_state import capture_random_state, restore_random_state
from smddp.errors import DistributedError

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(WORKSPACE, raising=False)
    before, benchmark = capture_random_state(), torch.backends.cudnn.benchmark
    yield
    restore_random_state([before], rank=0)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = benchmark
    os.environ.pop(WORKSPACE, None)


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(()).item()


def seeded(seed: int, **options: Any) -> tuple[float, float, float]:
    seed_everything(seed, **options)
    return draws()


def test_without_a_rank_it_is_what_each_generator_gives_by_itself() -> None:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert draws() == seeded(5)


def test_each_rank_and_each_seed_has_numbers_of_its_own_and_always_these() -> None:
    found = [seeded(seed, rank=rank) for seed in range(4) for rank in range(4)] + [seeded(seed) for seed in range(4)]
    for each in zip(*found, strict=True):
        assert len(set(each)) == 20  # seed + rank would give 7
    assert seeded(3, rank=2) == found[3 * 4 + 2]


@pytest.mark.parametrize(
    ("seed", "options", "told"),
    [
        (-1, {}, "seed=-1: give a whole number from 0 to 4294967295"),
        (2**32, {}, "seed=4294967296"),
        (0.5, {}, "seed=0.5"),
        (1, {"rank": -1}, "rank=-1: give this process's rank, job.cluster.rank, or None"),
    ],
)
def test_what_is_not_possible_is_refused_and_nothing_is_seeded(seed: Any, options: dict[str, Any], told: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises(ValueError) as error:
        seed_everything(seed, **options)
    assert told in str(error.value)
    assert torch.equal(before, torch.get_rng_state())


def test_deterministic_is_set_and_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="smddp.training.random_state")
    torch.backends.cudnn.benchmark = True
    seed_everything(1, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.benchmark
    assert os.environ[WORKSPACE] == ":4096:8"
    assert caplog.messages == [f"{WORKSPACE} was unset: set to :4096:8, for deterministic=True"]


def test_a_workspace_of_the_users_stays_and_one_that_is_not_reproducible_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(WORKSPACE, ":16:8")
    seed_everything(1, deterministic=True)
    assert caplog.messages == []
    monkeypatch.setenv(WORKSPACE, ":0:0")
    seed_everything(1, deterministic=True)
    assert os.environ[WORKSPACE] == ":0:0"
    assert "CUBLAS_WORKSPACE_CONFIG=:0:0 is left as it is: cuBLAS is reproducible with :4096:8 or :16:8" in caplog.text


def test_too_late_for_cublas_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(DistributedError, match=r"needs CUBLAS_WORKSPACE_CONFIG before CUDA .*: set it to :4096:8 in"):
        seed_everything(1, deterministic=True)
    assert not torch.are_deterministic_algorithms_enabled()
    monkeypatch.setenv(WORKSPACE, ":4096:8")
    seed_everything(1, deterministic=True)


PROGRAM = """
import torch
from torch import nn
import smddp

def main(job):
    smddp.seed_everything(7)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5))
    print("weights", model[0].weight.double().sum().item())
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    smddp.seed_everything(7, rank=job.cluster.rank)
    for epoch in trainer.epochs(1):
        output = trainer.model(torch.ones(1, 4))
        print("dropped", "".join(str(int(value == 0)) for value in output[0]))
        trainer.step(output.sum())
    print("weights", model[0].weight.double().sum().item())

smddp.run(main)
"""


@pytest.mark.slow
def test_two_ranks_have_the_same_weights_and_drop_others(run_ranks: Callable[..., list[Any]], tmp_path: Path) -> None:
    ranks = run_ranks(PROGRAM, [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    (begun, dropped, ended), (other_begun, other_dropped, other_ended) = (rank.printed.splitlines() for rank in ranks)
    assert begun == other_begun
    assert dropped != other_dropped
    assert ended == other_ended != begun
