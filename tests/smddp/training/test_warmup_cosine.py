from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from smddp import CheckpointPolicy, Trainer, warmup_cosine
from smddp.distributed import leave
from smddp.job import Job


def rates(warmup_steps: int, total_steps: int, count: int, **options: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = warmup_cosine(optimizer, warmup_steps, total_steps, **options)
    found = []
    for _ in range(count):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_it_rises_in_a_line_and_falls_along_a_cosine_to_its_last_ratio() -> None:
    found = rates(3, 13, 16, final_ratio=0.2)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert found[8] == pytest.approx(0.6)
    assert found[13:] == pytest.approx([0.2] * 3)
    assert all(later < earlier for earlier, later in itertools.pairwise(found[3:14]))


def test_without_a_warm_up_it_is_torchs_cosine() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    expected = []
    for _ in range(10):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        torchs.step()
    assert rates(0, 10, 10) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((-1, 10), "warmup_steps=-1: give a number of optimizer steps, 0 or more"),
        ((0.1, 10), "warmup_steps=0.1"),
        ((10, 10), "total_steps=10: give the optimizer steps of the whole training, more than warmup_steps=10"),
        ((0, math.inf), "total_steps=inf"),
        ((1, 10, "0.1"), "final_ratio='0.1': give a part of the learning rate, from 0 to 1"),
        ((1, 10, 1.5), "final_ratio=1.5: give a part of the learning rate, from 0 to 1"),
    ],
)
def test_what_is_not_possible_is_refused(numbers: Any, told: str) -> None:
    with pytest.raises(ValueError) as error:
        warmup_cosine(torch.optim.SGD([torch.zeros(1)], lr=1.0), *numbers)
    assert told in str(error.value)


def train(job: Job, steps: int, *, lr: float = 1.0, **options: Any) -> list[float]:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(
        [{"params": [model.weight], "lr": lr}, {"params": [model.bias], "lr": lr / 2}], momentum=0.9
    )
    trainer = Trainer(job, model, optimizer, scheduler=warmup_cosine(optimizer, 4, 20, 0.1), **options)
    found = []
    for _ in trainer.steps_to(steps):
        found += [group["lr"] for group in optimizer.param_groups]
        trainer.step(trainer.model(torch.ones(1, 1)).mean() * 1e-3)
    leave()
    return found


@pytest.mark.parametrize("resume_at", [2, 4, 11])
def test_a_resume_is_exact_in_the_warm_up_and_after_it(tmp_path: Path, resume_at: int) -> None:
    undisturbed = train(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "undisturbed")}), 20)
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    assert train(job, resume_at) + train(job, 20) == undisturbed


@pytest.mark.parametrize("resume_at", [2, 11])
def test_a_resume_with_another_learning_rate_goes_on_at_that_one(tmp_path: Path, resume_at: int) -> None:
    doubled = train(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "doubled")}), 20, lr=2.0)
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    train(job, resume_at)
    taken = train(job, 20, lr=2.0, checkpoints=CheckpointPolicy(on_change="take"))
    assert taken == pytest.approx(doubled[2 * resume_at :])
