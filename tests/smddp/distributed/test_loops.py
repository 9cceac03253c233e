"""Loops other than the README's on two ranks: the ranks stay alike, or say why they would not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HEAD = """
import logging
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
import smddp
from smddp.distributed import current_membership

def same_on_all(model):
    flat = torch.cat([value.flatten().double() for value in model.state_dict().values()]).tolist()
    return len(set(map(tuple, current_membership().ranks.gather(lambda: flat)))) == 1

def made(job, model=None, name=None, **options):
    torch.manual_seed(1)
    model = model or nn.Linear(1, 1)
    return smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), name=name, **options)

def points(first=0):
    return TensorDataset(torch.arange(first, first + 40, dtype=torch.float32).unsqueeze(1) / 40)
"""

LOOPS = (
    HEAD
    + """
def zipped_loaders(job):
    trainer = made(job, name="zipped", accumulate=2)
    labelled = trainer.loader(points(), batch_size=8)
    unlabelled = [(torch.full((2, 1), 1.0 + job.cluster.rank),)] * 10
    for _ in trainer.epochs(2):
        for (x,), (u,) in zip(trainer.batches(labelled), trainer.batches(unlabelled)):
            trainer.step((trainer.model(x) - x).square().mean() + trainer.model(u).square().mean())
    assert trainer.steps == 10, trainer.steps
    assert same_on_all(trainer.module)

def unfrozen(job):
    model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    for weight in model[0].parameters():
        weight.requires_grad_(False)
    trainer = made(job, model, name="unfrozen")
    loader = trainer.loader(points(), batch_size=8)
    before = model[0].weight.clone()
    for epoch in trainer.epochs(3):
        for weight in model[0].parameters():
            weight.requires_grad_(epoch > 0)
        for weight in model[2].parameters():
            weight.requires_grad_(epoch < 2)
        for (x,) in trainer.batches(loader):
            trainer.step((trainer.model(x) - x).square().mean())
        assert same_on_all(model), epoch
        assert torch.equal(model[0].weight, before) == (epoch == 0)

def evaluation_with_gradients(job):
    model = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    trainer = made(job, model, name="evaluation")
    loader = trainer.loader(points(), batch_size=8)
    evaluation = trainer.evaluation_loader(TensorDataset(torch.ones(3, 1)), batch_size=1)
    for _ in trainer.epochs(2):
        for (x,) in trainer.batches(loader):
            trainer.step((trainer.model(x) - x).square().mean())
        assert same_on_all(model)  # BatchNorm's statistics, too
        model.eval()
        total = trainer.sum(sum(trainer.model(x).sum() for (x,) in trainer.batches(evaluation)).detach())
        model.train()

def metrics_of_all(job):
    trainer = made(job, name="metrics", log_every=1)
    trainer.step(0 * trainer.model(torch.ones(1, 1)).sum() + 1000.0 * job.cluster.rank)
    trainer.log(accuracy=0.5 + job.cluster.rank)
    trainer.sum(1)

def leftovers(job):
    trainer = made(job, name="leftovers", accumulate=3)
    batches = [(torch.full((2, 1), 1.0 * number + job.cluster.rank),) for number in range(5)]
    for _ in trainer.epochs(1):
        for (x,) in trainer.batches(batches):
            trainer.step((trainer.model(x) - 1).square().mean())
    assert trainer.steps == 2
    assert same_on_all(trainer.module)

def frozen_within_a_step(job):
    model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    trainer = made(job, model, name="frozen", accumulate=2)
    for step in range(4):
        x = torch.full((2, 1), 1.0 + job.cluster.rank + step)
        trainer.step((trainer.model(x) - 1).square().mean())
        if step == 0:
            for weight in model[0].parameters():
                weight.requires_grad_(False)
    assert same_on_all(model)
    for weight in model.parameters():
        weight.requires_grad_(False)
    trainer.model(torch.ones(1, 1))  # a critic while the generator learns: nothing of it is averaged

def refused(job):
    trainer = made(job, name="refused", accumulate=2)
    errors = []
    def attempt(action):
        try:
            action()
        except ValueError as error:
            errors.append(str(error))
    attempt(lambda: trainer.loader(StatefulDataLoader(points(), shuffle=True)))
    attempt(lambda: next(trainer.batches(DataLoader(points(), shuffle=True))))
    drawn = DataLoader(points(), sampler=torch.utils.data.WeightedRandomSampler([1.0] * 40, 40))
    attempt(lambda: next(trainer.batches(drawn)))
    trainer.step(trainer.model(torch.ones(1, 1)).mean())
    attempt(lambda: trainer.step(trainer.module(torch.ones(1, 1)).mean()))
    own = nn.ModuleList([trainer.module, nn.Linear(1, 1)])
    attempt(lambda: smddp.Trainer(job, trainer.module, torch.optim.SGD(own.parameters(), lr=0.1)))
    attempt(lambda: made(job, trainer.model))
    if job.cluster.is_main:
        print(*errors, sep="\\n")

def main(job):
    loops = (zipped_loaders, unfrozen, evaluation_with_gradients, metrics_of_all, leftovers, frozen_within_a_step)
    for loop in (*loops, refused):
        loop(job)
        if job.cluster.is_main:
            print("done", loop.__name__)

smddp.run(main)
"""
)


@pytest.mark.slow
def test_ranks_stay_alike_or_are_told_why_not(run_ranks: Callable[..., list[Any]], tmp_path: Path) -> None:
    main, other = run_ranks(LOOPS, [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert [main.code, other.code] == [0, 0], (main, other)
    lines = main.printed.splitlines()
    assert sum(line.startswith("done ") for line in lines) == 7
    refusals = [line for line in lines if not line.startswith("done ")]
    all_of_it = ["gives each rank all of"] * 3
    reasons = (*all_of_it, "would not be averaged", "train them apart", "give the module itself")
    for refusal, reason in zip(refusals, reasons, strict=True):
        assert reason in refusal
    assert "step=1 epoch=1 loss=500 " in main.logged
    assert "the ranks logged different metrics at step 1" in main.logged
